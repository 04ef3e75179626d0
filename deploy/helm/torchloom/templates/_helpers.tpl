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

{{- define "torchloom.namespaces" -}}
{{ join "," (prepend .Values.agentNamespaces .Release.Namespace | uniq) }}
{{- end }}

{{- define "torchloom.natsServers" -}}
{{- $hosts := list -}}
{{- range $i := until (int .Values.nats.replicas) -}}
{{- $hosts = append $hosts (printf "%s-nats-%d.%s" (include "torchloom.name" $) $i (include "torchloom.natsHost" $)) -}}
{{- end -}}
{{ join "," $hosts }}
{{- end }}

{{- define "torchloom.apiUrl" -}}
https://{{ include "torchloom.apiHost" . }}:{{ .Values.weaver.port }}
{{- end }}

{{- /* What an agent needs to know. It makes a key of its own and proves by its pod's token which node it is; what it
gets for that is its own, too: nothing here is secret. */}}
{{- define "torchloom.agentEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: LOOM_NODE_FROM
  value: $(POD_NAME)
- name: LOOM_HOME
  value: /var/lib/torchloom/home
- name: LOOM_JOIN_ADDRESS
  value: {{ include "torchloom.apiUrl" . }}
- name: LOOM_JOIN_TOKEN_FILE
  value: /var/run/secrets/torchloom/token
- name: LOOM_CA
  value: /etc/torchloom/ca/ca.crt
{{- end }}

{{- /* What a training pod needs besides to submit its job; its token of the API comes with its admission. */}}
{{- define "torchloom.clientEnv" -}}
- name: LOOM_ADDRESS
  value: {{ include "torchloom.apiUrl" . }}
{{- end }}

{{- define "torchloom.agentMounts" -}}
- {name: home, mountPath: /var/lib/torchloom}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
- {name: ca, mountPath: /etc/torchloom/ca, readOnly: true}
- {name: proof, mountPath: /var/run/secrets/torchloom, readOnly: true}
{{- end }}

{{- define "torchloom.agentVolumes" -}}
- {name: home, emptyDir: {}}
- {name: tmp, emptyDir: {}}
- name: ca
  configMap: {name: {{ include "torchloom.name" . }}-ca}
# Proves to the control service which pod this is, and to nobody else anything.
- name: proof
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {audience: torchloom, expirationSeconds: 3600, path: token}
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
