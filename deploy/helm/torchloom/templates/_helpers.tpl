{{- define "torchloom.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "torchloom.labels" -}}
app.kubernetes.io/name: torchloom
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "torchloom.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "torchloom.authSecret" -}}
{{ .Values.auth.existingSecret | default (printf "%s-auth" (include "torchloom.name" .)) }}
{{- end }}

{{- define "torchloom.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "torchloom.name" .)) }}
{{- end }}

{{- define "torchloom.natsHost" -}}
{{ include "torchloom.name" . }}-nats.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "torchloom.apiHost" -}}
{{ include "torchloom.name" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "torchloom.natsUrl" -}}
{{- if .Values.nats.enabled -}}
{{- $urls := list -}}
{{- range $i := until (int .Values.nats.replicas) -}}
{{- $urls = append $urls (printf "tls://%s-nats-%d.%s:4222" (include "torchloom.name" $) $i (include "torchloom.natsHost" $)) -}}
{{- end -}}
{{ join "," $urls }}
{{- else -}}
{{ required "externalNats.url is needed when nats.enabled is false" .Values.externalNats.url }}
{{- end -}}
{{- end }}

{{- define "torchloom.copies" -}}
{{- if .Values.nats.enabled -}}
{{ if ge (int .Values.nats.replicas) 3 }}3{{ else }}1{{ end }}
{{- else -}}
{{ .Values.externalNats.copies }}
{{- end -}}
{{- end }}

{{- define "torchloom.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "torchloom.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* What an agent needs to know. It talks to the bus alone and has no token of the API. */}}
{{- define "torchloom.agentEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: LOOM_NODE_FROM
  value: $(POD_NAME)
- name: LOOM_HOME
  value: /var/lib/torchloom/home
- name: LOOM_NATS_URL
  value: {{ include "torchloom.natsUrl" . | quote }}
- name: LOOM_NATS_USER
  value: agent
- name: LOOM_NATS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "torchloom.name" . }}-agent, key: agent-password}}
- name: LOOM_NATS_INBOX
  value: _INBOX_AGENTS
- name: LOOM_NATS_LEADER
  value: loom.v1.leader
- name: LOOM_NATS_CA
  value: /etc/torchloom/agent/ca.crt
{{- end }}

{{- /* What a training pod needs to submit its job. */}}
{{- define "torchloom.clientEnv" -}}
- name: LOOM_ADDRESS
  value: https://{{ include "torchloom.apiHost" . }}:{{ .Values.weaver.port }}
- name: LOOM_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "torchloom.name" . }}-agent, key: token}}
- name: LOOM_CA
  value: /etc/torchloom/agent/ca.crt
{{- end }}

{{- define "torchloom.agentMounts" -}}
- {name: home, mountPath: /var/lib/torchloom}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
- {name: agent, mountPath: /etc/torchloom/agent, readOnly: true}
{{- end }}

{{- define "torchloom.agentProbes" -}}
# The agent touches this file while its node is joined and its loop turns.
startupProbe:
  exec: {command: [test, -e, /var/lib/torchloom/home/alive]}
  periodSeconds: 2
  failureThreshold: 90
livenessProbe:
  exec: {command: [sh, -c, "find /var/lib/torchloom/home/alive -mmin -2 | grep -q ."]}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 4
{{- end }}
