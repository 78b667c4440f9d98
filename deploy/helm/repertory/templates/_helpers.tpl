{{/* Everything is named after the cluster. KubeRay calls the head's service NAME-head-svc. */}}
{{- define "repertory.name" -}}
{{ .Values.inventory.name }}
{{- end -}}

{{- define "repertory.secret" -}}
{{ .Values.secretName | default (printf "%s-secrets" .Values.inventory.name) }}
{{- end -}}

{{- define "repertory.head" -}}
{{ printf "%s-head-svc.%s.svc.%s" .Values.inventory.name .Release.Namespace .Values.clusterDomain }}
{{- end -}}

{{/* Of pods: a label of our own, since KubeRay finds the head by the usual ones. */}}
{{- define "repertory.selector" -}}
repertory-cluster: {{ .Values.inventory.name }}
{{- end -}}

{{- define "repertory.labels" -}}
{{ include "repertory.selector" . }}
app.kubernetes.io/name: repertory
app.kubernetes.io/instance: {{ .Values.inventory.name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "repertory.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "repertory.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The words of one node. `role` and `head` differ; Kubernetes fills in $(POD_NAME), $(POD_IP). */}}
{{- define "repertory.command" -}}
- repertory
- cluster
- node
- /etc/repertory/inventory.yaml
- --role
- {{ .role }}
- --name
- $(POD_NAME)
- --address
- $(POD_IP)
- --head-address
- {{ .head }}
- --secrets
- /run/secrets/repertory
- --folder
- /node
{{- end -}}

{{/* Ray's settings are those that the node sets itself: KubeRay's own check of the head needs them. */}}
{{- define "repertory.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: HOME, value: /tmp}
- {name: USER, value: repertory}
- {name: REPERTORY_NODE, value: /node}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN_PATH, value: /node/token}
- {name: RAY_USE_TLS, value: "1"}
- {name: RAY_TLS_CA_CERT, value: /node/authority.pem}
- {name: RAY_TLS_SERVER_CERT, value: /node/certificate.pem}
- {name: RAY_TLS_SERVER_KEY, value: /node/key.pem}
{{- end -}}

{{- define "repertory.mounts" -}}
- {name: node, mountPath: /node}
- {name: temporary, mountPath: /tmp}
- {name: shared-memory, mountPath: /dev/shm}
- {name: inventory, mountPath: /etc/repertory, readOnly: true}
- {name: secrets, mountPath: /run/secrets/repertory, readOnly: true}
{{- end -}}

{{- define "repertory.volumes" -}}
- {name: node, emptyDir: {}}
- {name: temporary, emptyDir: {}}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ add .shape.object_store_mb 256 }}Mi}
- name: inventory
  configMap: {name: {{ include "repertory.name" .root }}-inventory}
- name: secrets
  secret:
    secretName: {{ include "repertory.secret" .root }}
    defaultMode: 256 # 0400
{{- end -}}

{{- define "repertory.resources" -}}
{{- range $kind := list "requests" "limits" }}
{{ $kind }}:
  cpu: {{ $.cores | quote }}
  memory: {{ printf "%.0fMi" (mulf $.memory_gb 1024) }}
  {{- if $.gpus }}
  nvidia.com/gpu: {{ $.gpus | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* KubeRay would add probes of its own, which ask Ray's dashboard: there is none here. */}}
{{- define "repertory.probes" -}}
startupProbe:
  exec: {command: [repertory, cluster, healthy, --folder, /node, --alive]}
  periodSeconds: 5
  timeoutSeconds: 20
  failureThreshold: 60
livenessProbe:
  exec: {command: [repertory, cluster, healthy, --folder, /node, --alive]}
  periodSeconds: 30
  timeoutSeconds: 20
  failureThreshold: 5
readinessProbe:
  exec: {command: [repertory, cluster, healthy, --folder, /node]}
  periodSeconds: 10
  timeoutSeconds: 20
  failureThreshold: 3
{{- end -}}

{{- define "repertory.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGraceSeconds }}
securityContext:
  {{- include "repertory.podSecurity" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
