"""Rules that Kubernetes enforces, or that make things work, and that no schema knows."""

from __future__ import annotations

from typing import Any

from manifests import Object, containers, job_specs, pod_templates


def semantic_errors(objects: list[Object]) -> list[str]:
    found: list[str] = []
    for one in objects:
        where = f"{one['kind']} {one['metadata']['name']}"
        found += [f"{where}: {text}" for text in (*_selector(one), *_jobs(one), *_pods(one, objects))]
        found += [f"{where}: {text}" for text in _refers(one, objects)]
    return found


def _labels(template: Object) -> dict[str, str]:
    found: dict[str, str] = template.get("metadata", {}).get("labels", {})
    return found


def _matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def _selector(one: Object) -> list[str]:
    """A controller's selector must match its own pods and is immutable: no version may be in it."""
    if one["kind"] not in ("Deployment", "StatefulSet", "DaemonSet"):
        return []
    selector = one["spec"]["selector"]["matchLabels"]
    found = []
    if not _matches(selector, _labels(one["spec"]["template"])):
        found.append("the selector does not match its own pods")
    if any("version" in key or "chart" in key for key in selector):
        found.append("the selector changes with an upgrade, which Kubernetes refuses")
    return found


def _jobs(one: Object) -> list[str]:
    found = []
    for spec in job_specs(one):
        pod = spec["template"]["spec"]
        if pod.get("restartPolicy") not in ("Never", "OnFailure"):
            found.append("the restartPolicy of a Job's pod is Never or OnFailure")
        if "podFailurePolicy" in spec:
            if pod.get("restartPolicy") != "Never":
                found.append("podFailurePolicy needs restartPolicy Never")
            if spec.get("podReplacementPolicy", "Failed") != "Failed":
                found.append("podFailurePolicy needs podReplacementPolicy Failed")
            names = {container["name"] for container in pod["containers"]}
            for rule in spec["podFailurePolicy"]["rules"]:
                if rule.get("onExitCodes", {}).get("containerName", next(iter(names))) not in names:
                    found.append("podFailurePolicy names a container that does not exist")
                for condition in rule.get("onPodConditions", []):
                    if not isinstance(condition.get("status"), str):
                        found.append("the status of a condition is text")
        if spec.get("completionMode") == "Indexed" and "completions" not in spec:
            found.append("an Indexed Job needs completions")
    return found


def _pods(one: Object, objects: list[Object]) -> list[str]:
    found: list[str] = []
    for template in pod_templates(one):
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        if one["kind"] == "StatefulSet":
            volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        if not spec.get("securityContext", {}).get("runAsNonRoot"):
            found.append("a pod may run as root")
        if spec.get("securityContext", {}).get("seccompProfile", {}).get("type") != "RuntimeDefault":
            found.append("a pod has no seccomp profile")
        accounts = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
        if spec.get("serviceAccountName", "") not in {"", *accounts}:
            found.append(f"account {spec['serviceAccountName']} does not exist")
        mounts_token = spec.get("automountServiceAccountToken")
        if mounts_token is not False and "serviceAccountName" not in spec:
            found.append("a pod that needs no service account mounts its token")
        for container in containers(template):
            found += [f"{container['name']}: {text}" for text in _container(container, spec, volumes)]
    return found


def _container(container: Object, spec: Object, volumes: set[str]) -> list[str]:
    found = []
    security = container.get("securityContext", {})
    if not security.get("readOnlyRootFilesystem") or security.get("allowPrivilegeEscalation") is not False:
        found.append("it may write to its root, or gain rights")
    if security.get("capabilities", {}).get("drop") != ["ALL"]:
        found.append("it keeps capabilities")
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    found += [f"volume {name} does not exist" for name in sorted(mounted - volumes)]
    if "/tmp" not in {mount["mountPath"] for mount in container.get("volumeMounts", [])}:
        found.append("nothing is writable at /tmp")
    ports = {port["name"] for port in container.get("ports", [])}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {})
        port = probe.get("httpGet", {}).get("port")
        if port is not None and port not in ports:
            found.append(f"{kind} asks port {port}, which it has not")
        if kind == "livenessProbe" and probe.get("successThreshold", 1) != 1:
            found.append("the successThreshold of a livenessProbe is 1")
    names = [variable["name"] for variable in container.get("env", [])]
    found += [f"{name} is set twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for variable in container.get("env", []):
        # $(NAME) is expanded only from variables that stand before it.
        value = variable.get("value", "")
        if value.startswith("$(") and value[2:-1] not in names[: names.index(variable["name"])]:
            found.append(f"{variable['name']} uses {value} before it is set")
    for word in [*container.get("command", []), *container.get("args", [])]:
        if "$(" in word and word.partition("$(")[2].partition(")")[0] not in names:
            found.append(f"{word} uses a variable that is not set")
    grace = spec.get("terminationGracePeriodSeconds", 30)
    for word in container.get("args", []):
        if word.startswith("--leave-within=") and float(word.partition("=")[2]) >= grace:
            found.append(f"{word} is not within the grace period of {grace} s")
    return found


def _refers(one: Object, objects: list[Object]) -> list[str]:
    found = []
    kind, name = one["kind"], one["metadata"]["name"]
    templates = [template for other in objects for template in pod_templates(other)]
    if kind == "Service":
        selected = [t for t in templates if _matches(one["spec"]["selector"], _labels(t))]
        if not selected:
            found.append("it selects no pod")
        for port in one["spec"]["ports"]:
            for template in selected:
                known: set[Any] = {
                    value
                    for c in containers(template)
                    for p in c.get("ports", [])
                    for value in (p["name"], p["containerPort"])
                }
                if port["targetPort"] not in known:
                    found.append(f"port {port['name']} leads to {port['targetPort']}, which no pod has")
    if kind in ("PodDisruptionBudget", "NetworkPolicy"):
        selector = one["spec"].get("selector") or one["spec"].get("podSelector")
        if not any(_matches(selector["matchLabels"], _labels(t)) for t in templates):
            found.append("it selects no pod")
    if kind == "StatefulSet":
        services = {other["metadata"]["name"] for other in objects if other["kind"] == "Service"}
        if one["spec"]["serviceName"] not in services:
            found.append("its service does not exist")
    if kind in ("RoleBinding", "ClusterRoleBinding"):
        wanted = (one["roleRef"]["kind"], one["roleRef"]["name"])
        if wanted not in {(other["kind"], other["metadata"]["name"]) for other in objects}:
            found.append(f"{wanted} does not exist")
        accounts = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
        found += [f"account {s['name']} does not exist" for s in one["subjects"] if s["name"] not in accounts]
    if len(name) > 63:
        found.append("the name is longer than 63 characters")
    return found


def secrets_used(objects: list[Object]) -> dict[str, set[str]]:
    """Names of secrets that pods use, with the keys."""
    return secrets_used_by([template for one in objects for template in pod_templates(one)])


def secrets_used_by(templates: list[Object]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for template in templates:
        for container in containers(template):
            for variable in container.get("env", []):
                ref = variable.get("valueFrom", {}).get("secretKeyRef")
                if ref:
                    found.setdefault(ref["name"], set()).add(ref["key"])
        for volume in template["spec"].get("volumes", []):
            if "secret" in volume:
                items = {item["key"] for item in volume["secret"].get("items", [])}
                found.setdefault(volume["secret"]["secretName"], set()).update(items)
    return found


def allowed_calls(objects: list[Object], account: str) -> set[tuple[str, str, str]]:
    """API group, resource and verb of everything that the roles of an account allow."""
    roles = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in objects
        if one["kind"].endswith("Binding") and account in {subject["name"] for subject in one["subjects"]}
    }
    return {
        (group, resource, verb)
        for one in objects
        if (one["kind"], one["metadata"]["name"]) in roles
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


ALLOWED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"}
ALLOWED_VOLUMES |= {"persistentVolumeClaim", "projected", "secret"}


def restricted_errors(objects: list[Object]) -> list[str]:
    """What the restricted Pod Security Standard refuses, where Kubernetes enforces it."""
    found = []
    for one in objects:
        for template in pod_templates(one):
            where = f"{one['kind']} {one['metadata']['name']}"
            spec = template["spec"]
            found += [f"{where}: {key}" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
            for volume in spec.get("volumes", []):
                kinds = volume.keys() - {"name"} - ALLOWED_VOLUMES
                found += [f"{where}: a volume of {kind}" for kind in sorted(kinds)]
            for container in containers(template):
                name = f"{where}: {container['name']}"
                security = spec.get("securityContext", {}) | container.get("securityContext", {})
                if not security.get("runAsNonRoot") or security.get("runAsUser") == 0:
                    found.append(f"{name} runs as root")
                if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
                    found.append(f"{name} has no seccomp profile")
                if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
                    found.append(f"{name} may gain rights")
                if security.get("capabilities", {}).get("drop") != ["ALL"]:
                    found.append(f"{name} keeps capabilities")
                if any("hostPort" in port for port in container.get("ports", [])):
                    found.append(f"{name} has a port of the host")
                probes = [container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")]
                if any("host" in probe.get("httpGet", {}) for probe in probes):
                    found.append(f"{name} has a probe of another host")
    return found
