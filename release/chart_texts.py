"""Texts of the Helm chart that are not generated from manifests: values, quotas, notes and test."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

import deploy

_DEPLOYMENT = next(
    yaml.safe_load_all((Path(deploy.__file__).parent / "controller" / "deployment.yaml").read_text())
)
RESOURCES = json.dumps(_DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["resources"])

VALUES = f"""\
# Images, as your cluster pulls them; preferably by digest: registry.example/dlr-controller@sha256:…
images:
  controller: {deploy.DEFAULT_IMAGE}
  # Injects the agent into the Pods of jobs.
  agent: {deploy.DEFAULT_AGENT_IMAGE}
  # Runs node checks.
  worker: {deploy.DEFAULT_CHECK_IMAGE}

# Number of controllers: one leads, the others stand by. More than one get a PodDisruptionBudget.
replicas: 2

# Secrets of this namespace for pulling the controller's image. Pods of jobs and checks use
# imagePullSecrets of their own namespaces (docs/images.md).
imagePullSecrets: []
#  - name: registry

# Placement and resources of the controller's Pods. The memory limit is for 10,000 workers.
nodeSelector: {{}}
tolerations: []
affinity: {{}}
resources: {RESOURCES}

# Nodes found faulty: enforce cordons them, report only reports what it would do, off does nothing.
# In one namespace (jobsNamespace) it is always off.
cordon: enforce

# Further arguments of `dlr controller`, such as --cordon-limit=5 or --log-level=debug.
extraArgs: []

# Environment variables of the controller. OTEL_EXPORTER_OTLP_ENDPOINT enables tracing (docs/metrics.md).
extraEnv: []
#  - {{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: http://collector.observability:4318}}

# The only namespace that the controller handles, with rights only there. Empty: all namespaces.
# With several releases, each has a different one, and all but the first omit crds and userRoles.
jobsNamespace: ""

# Maximum number of ElasticWorkers that dlr creates in one namespace. It also sets the share of the
# controller's memory for the objects of a namespace, 20 KB each: raise resources.limits.memory with it.
workersPerNamespace: 12000

# A ResourceQuota in each of these namespaces, for dlr's kinds.
quotas:
  namespaces: []
  elasticjobs: 100
  scaleplans: 100
  nodechecks: 50
  elasticworkers: 2000

# The CRDs. They are kept when the chart is uninstalled: deleting them would delete all jobs.
crds: true

# Rights of users: dlr's kinds in the ClusterRoles view, edit and admin, and a role to read metrics.
userRoles: true

# Policies that prevent a worker from writing objects of another one.
admissionPolicies: true

# Priority levels of the controller and the workers at the API server.
flowSchemas: true

# A NetworkPolicy for the controller's Pods.
networkPolicy: false

# A PriorityClass for the controller, above that of training.
priorityClass: false

# Rights on Kueue's Workloads, so that jobs can wait in its queues.
kueue: false

# For the Prometheus Operator and Grafana: PodMonitor, alerts, dashboard, and an account that reads metrics.
metrics: false
"""

QUOTAS = """\
{{- range .Values.quotas.namespaces }}
---
apiVersion: v1
kind: ResourceQuota
metadata:
  name: dlr
  namespace: {{ . | quote }}
  labels:
    app.kubernetes.io/part-of: dlr
spec:
  hard:
    count/elasticjobs.elastic.iml.github.io: {{ $.Values.quotas.elasticjobs }}
    count/scaleplans.elastic.iml.github.io: {{ $.Values.quotas.scaleplans }}
    count/nodechecks.elastic.iml.github.io: {{ $.Values.quotas.nodechecks }}
    count/elasticworkers.elastic.iml.github.io: {{ $.Values.quotas.elasticworkers }}
    count/elasticworlds.elastic.iml.github.io: {{ $.Values.quotas.elasticjobs }}
{{- end }}
"""

NOTES = """\
dlr {{ .Chart.AppVersion }} is installed in namespace {{ .Release.Namespace }}. Check that it is ready:

  dlr doctor -n {{ .Release.Namespace }}{{ with .Values.jobsNamespace }} --jobs-namespace {{ . }}{{ end }}
  helm test {{ .Release.Name }} -n {{ .Release.Namespace }}    # the same, in a Pod

Helm creates a namespace without labels. To restrict its Pods, and let its node checks cordon nodes:

  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=restricted \\
    elastic.iml.github.io/may-cordon=true
"""

POD_VALUES = """\
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent INDENT }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent INDENT }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent INDENT }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent INDENT }}
{{- end }}
"""
"""Fields of a Pod's spec that are set by values."""


def pod_values(indent: int) -> str:
    """Return `POD_VALUES` for a Pod's spec with the given indentation."""
    lines = POD_VALUES.replace("INDENT", str(indent + 2)).splitlines(keepends=True)
    return "".join(" " * indent + line for line in lines)


TEST = (
    """\
{{- $name := printf "dlr-test-%s" .Release.Namespace }}
{{- define "dlr.test" }}
  labels:
    app.kubernetes.io/part-of: dlr
  annotations:
    helm.sh/hook: test
    helm.sh/hook-weight: {{ . | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: dlr-test
  namespace: {{ .Release.Namespace | quote }}
  {{- include "dlr.test" "0" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name | quote }}
  {{- include "dlr.test" "0" }}
rules:
  - {apiGroups: [apps], resources: [deployments], verbs: [list]}
  - {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get]}
  - {apiGroups: [admissionregistration.k8s.io], resources: [validatingadmissionpolicies], verbs: [get]}
  - {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles, roles], verbs: [get]}
  - {apiGroups: [""], resources: [pods, nodes], verbs: [list]}
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get], resourceNames: [dlr-controller]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name | quote }}
  {{- include "dlr.test" "0" }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name | quote }}}
subjects:
  - {kind: ServiceAccount, name: dlr-test, namespace: {{ .Release.Namespace | quote }}}
---
apiVersion: v1
kind: Pod
metadata:
  name: dlr-test
  namespace: {{ .Release.Namespace | quote }}
  {{- include "dlr.test" "1" }}
spec:
  serviceAccountName: dlr-test
  restartPolicy: Never
"""
    + pod_values(2)
    + """\
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: doctor
      image: {{ .Values.images.controller | quote }}
      command:
        - dlr
        - doctor
        - --namespace={{ .Release.Namespace }}
        {{- with .Values.jobsNamespace }}
        - --jobs-namespace={{ . }}
        {{- end }}
      resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 512Mi}}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
"""
)
"""Objects of `helm test`: `dlr doctor` in a Pod, with rights to read what it checks."""
