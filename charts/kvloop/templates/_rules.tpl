{{/* What the operator may do, and nothing beyond. It reads no Secret: what is missing, the kubelet says in the pod's status. */}}
{{- define "kvloop.rules" -}}
# Custom resources: their status is the operator's, their spec is not.
- apiGroups: [kvloop.io]
  resources: [disaggregatedinferences]
  verbs: [get, list, watch]
- apiGroups: [kvloop.io]
  resources: [disaggregatedinferences/status]
  verbs: [patch]
- apiGroups: [kvloop.io]
  resources: [disaggregatedinferences/finalizers] # to set blockOwnerDeletion, where the cluster checks that
  verbs: [update]
# Children. Server-side apply of an object that is not there needs create, too.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets/scale] # to leave the replica count to others without losing it
  verbs: [patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# Pods: to see why they are not ready, and to delete those that hold up a rollout.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
{{- if not .Values.watchNamespaces }}
# Nodes: to say which devices they lack when a pod waits for one. They are in no namespace.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end }}
# Nobody may grant what he does not have: this is the whole of the routers' Role.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# Events: to tell of transitions, and to read why a StatefulSet cannot make its pods.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
# The operator's own Lease, with which it proves that it still hears. A create cannot be bound to a name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [kvloop-operator]
  verbs: [get, list, watch, patch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end -}}
