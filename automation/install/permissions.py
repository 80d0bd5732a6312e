"""The permissions of the loop and the agents in a cluster, with reasons: the table from which all roles are generated.

`objects` makes the roles of an installation from it; docs/install/rbac.yaml and the chart are generated from those.
`herdsman doctor` checks the table row by row against the API server. Delete a permission that no code needs any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeapi.json_types import Json

FOLLOW = ("list", "watch")
READ = ("get", *FOLLOW)
MAKE = (*READ, "create", "patch", "delete")
LLMKUBE = "inference.llmkube.dev"
OURS = "herdsman.dev"
OWNING = (
    "Owner references that block the owner's deletion, for `kubectl delete --cascade=foreground`. The admission "
    "plugin OwnerReferencesPermissionEnforcement, which OpenShift enables, requires it."
)


@dataclass(frozen=True)
class Permission:
    """One rule of a role."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str = ""
    """A sentence or two, which become a comment; empty if the reason is obvious."""
    names: tuple[str, ...] = ()
    """The names of the objects that the rule applies to; empty for all."""

    @property
    def rule(self) -> Json:
        found: Json = {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}
        return {**found, "resourceNames": list(self.names)} if self.names else found

    @property
    def requests(self) -> tuple[tuple[str, str, str], ...]:
        """Return each (group, resource, verb) that the rule allows."""
        return tuple((self.group, resource, verb) for resource in self.resources for verb in self.verbs)


LOOP = (
    Permission(LLMKUBE, ("models",), FOLLOW),
    Permission(LLMKUBE, ("inferenceservices",), READ),
    Permission(
        LLMKUBE,
        (
            *("models/status", "inferenceservices/status", "gpuquotas/status", "modelrouters/status"),
            *("modelpools/status", "loraadapters/status"),
        ),
        ("patch",),
    ),
    Permission(
        LLMKUBE,
        ("inferenceservices/finalizers",),
        ("update",),
        OWNING,
    ),
    Permission(LLMKUBE, ("gpuquotas", "modelrouters", "modelpools"), FOLLOW),
    Permission(
        LLMKUBE,
        ("loraadapters",),
        (*FOLLOW, "patch"),
        "The loop adds a finalizer before it has an adapter loaded, and removes it after it was unloaded.",
    ),
    Permission(OURS, ("hostprocesses",), MAKE),
    Permission(
        OURS,
        ("hosts",),
        READ,
        "Hosts: the loop places replicas on them, reports lost hosts, and writes the status of hosts without an agent.",
    ),
    Permission(OURS, ("hosts/status", "hostprocesses/status"), ("patch",)),
    Permission("apps", ("deployments",), MAKE),
    Permission("", ("services",), MAKE),
    Permission("autoscaling", ("horizontalpodautoscalers",), MAKE),
    Permission("policy", ("poddisruptionbudgets",), MAKE),
    Permission("networking.k8s.io", ("networkpolicies", "ingresses"), MAKE),
    Permission(
        "gateway.networking.k8s.io",
        ("httproutes",),
        MAKE,
        "Optional extensions of a cluster. Without them, these rules have no effect.",
    ),
    Permission("keda.sh", ("scaledobjects",), MAKE),
    Permission("monitoring.coreos.com", ("podmonitors",), MAKE),
    Permission("pyrra.dev", ("servicelevelobjectives",), MAKE),
    Permission(
        "",
        ("persistentvolumeclaims",),
        (*READ, "create", "patch"),
        "The loop creates claims and never deletes them, because their weights can take hours to download.",
    ),
    Permission(
        "",
        ("pods",),
        (*READ, "patch", "delete"),
        "The loop removes the annotation do-not-disrupt from serving pods, and deletes pods that accept requests "
        "without an answer, one at a time.",
    ),
    Permission(
        "",
        ("pods/status",),
        ("patch",),
        "The pod condition for an answered completion. A readiness gate of the pod can wait for it.",
    ),
    Permission(
        "",
        ("pods/proxy",),
        ("get", "create"),
        "The loop sends requests to replicas through the API server: GET for metrics and for whether they are idle, "
        "POST for one completion after each start, and to load adapters. Without this rule, the health check alone "
        "makes a service Ready, and no LoRAAdapter is loaded.",
    ),
    Permission(
        "",
        ("pods/log",),
        ("get",),
        "The loop reads the compute device from the beginning of an engine's log, and the progress from the end of a "
        "downloader's log.",
    ),
    Permission(
        "batch",
        ("jobs",),
        (*FOLLOW, "create", "patch", "delete"),
        "A Job downloads a Model with spec.prefetch before a service needs it. The loop deletes a Job for an earlier "
        "source.",
    ),
    Permission(
        "",
        ("pods/eviction",),
        ("create",),
        "The loop evicts pods that are older than spec.maxPodLifetime. Evictions respect PodDisruptionBudgets.",
    ),
    Permission(
        "apps", ("replicasets",), ("list",), "A rollback reads the last template that served from its ReplicaSet."
    ),
    Permission(
        "apps",
        ("controllerrevisions",),
        ("list", "create", "patch", "delete"),
        "One ControllerRevision for each applied change of a service, with its time and editor. It is deleted with "
        "the service.",
    ),
    Permission(
        "",
        ("nodes", "namespaces"),
        FOLLOW,
        "Namespaces: quotas select them by label, and the loop creates nothing in a namespace that is being deleted.",
    ),
    Permission(
        "scheduling.k8s.io", ("priorityclasses",), FOLLOW, "For the position of a service in the queue for GPUs."
    ),
    Permission(
        "discovery.k8s.io",
        ("endpointslices",),
        MAKE,
        "Endpoints of processes on hosts and of sleeping services. The loop removes the endpoints of a lost host.",
    ),
    Permission("", ("events",), ("create", "patch")),
)
"""For the loop, in all namespaces. It reads no Secrets: pods use them by secretKeyRef."""

GROUPS = Permission("leaderworkerset.x-k8s.io", ("leaderworkersets",), MAKE, "Groups of pods over several nodes.")
SETTINGS = Permission(
    "",
    ("configmaps",),
    FOLLOW,
    "Settings of the upstream project, and a scheduler's configuration in a user's ConfigMap. The loop watches each "
    "by name.",
)
RBAC = "rbac.authorization.k8s.io"
SCHEDULER_READS = (
    *("inferencepools", "inferenceobjectives", "inferencemodels", "inferencemodelrewrites"),
    "inferencepoolimports",
)

DIALECTS: dict[str, tuple[Permission, ...]] = {
    "kserve": (
        Permission(
            "serving.kserve.io",
            ("llminferenceservices",),
            (*READ, "patch"),
            "The loop adds the labels that KServe's webhook adds, and removes KServe's finalizer from deleted objects.",
        ),
        Permission(
            "serving.kserve.io",
            ("llminferenceserviceconfigs",),
            (*FOLLOW, "patch"),
            "The loop removes KServe's finalizer from deleted objects that no service uses.",
        ),
        Permission(
            "serving.kserve.io",
            ("llminferenceservices/status", "llminferenceserviceconfigs/status"),
            ("patch",),
        ),
        Permission(
            "apiextensions.k8s.io",
            ("customresourcedefinitions",),
            ("get", "patch"),
            "The loop writes the address of its conversion webhook for v1alpha1 into the CRDs.",
            names=("llminferenceservices.serving.kserve.io", "llminferenceserviceconfigs.serving.kserve.io"),
        ),
        Permission("serving.kserve.io", ("llminferenceservices/finalizers",), ("update",), OWNING),
        GROUPS,
        SETTINGS,
        Permission("gateway.networking.k8s.io", ("gateways",), FOLLOW, "For the addresses in a service's status."),
        Permission(
            "inference.networking.k8s.io",
            SCHEDULER_READS,
            MAKE,
            "The loop creates pools. It needs the other rules because it grants them to schedulers, and RBAC forbids "
            "to grant rights that the grantor lacks.",
        ),
        Permission("inference.networking.x-k8s.io", SCHEDULER_READS, READ, "The same kinds in the older API group."),
        Permission("llm-d.ai", SCHEDULER_READS, READ, "The same kinds in the scheduler's API group."),
        Permission("coordination.k8s.io", ("leases",), (*MAKE, "update"), "Schedulers elect a leader."),
        Permission(
            "",
            ("secrets",),
            ("create", "patch"),
            "The loop writes certificates of pods. Of a store's Secret it reads only annotations, never values.",
        ),
        Permission("", ("serviceaccounts",), MAKE, "Accounts of schedulers and of pods with a routing sidecar."),
        Permission(RBAC, ("roles", "rolebindings"), MAKE, "The permissions of those accounts in their namespace."),
        Permission(
            RBAC, ("clusterrolebindings",), ("get", "create", "patch", "delete"), "Schedulers review access tokens."
        ),
        Permission(RBAC, ("clusterroles",), ("bind",), "Only that role.", names=("system:auth-delegator",)),
        Permission("resource.k8s.io", ("resourceclaimtemplates",), MAKE, "Devices by dynamic resource allocation."),
    ),
    "llmaz": (
        Permission(
            "llmaz.io", ("openmodels",), (*FOLLOW, "patch"), "The loop adds the labels that llmaz's webhook adds."
        ),
        Permission("inference.llmaz.io", ("backendruntimes",), FOLLOW),
        Permission(
            "inference.llmaz.io",
            ("playgrounds", "services"),
            (*READ, "patch"),
            "The loop adds the labels that llmaz's webhook adds.",
        ),
        Permission("inference.llmaz.io", ("playgrounds/status", "services/status"), ("patch",)),
        Permission("inference.llmaz.io", ("playgrounds/finalizers", "services/finalizers"), ("update",), OWNING),
        GROUPS,
        SETTINGS,
    ),
}
"""For the loop, by dialect, besides `LOOP`: granted only if the dialect is used."""

EXTERNAL_METRICS = (
    Permission(
        "apiregistration.k8s.io",
        ("apiservices",),
        ("get", "patch"),
        "The loop writes the authority of its certificate, and sees whether another adapter took the API over.",
        names=("v1beta1.external.metrics.k8s.io",),
    ),
    Permission(
        "authorization.k8s.io",
        ("subjectaccessreviews",),
        ("create",),
        "The loop asks what the users who read the metric may read.",
    ),
)
"""For the loop, in all namespaces, if it serves external metrics.

Besides, it reads how the API server proves itself, by Kubernetes' Role extension-apiserver-authentication-reader in
kube-system.
"""

LOOP_LEASES = (
    Permission(
        "coordination.k8s.io",
        ("leases",),
        (*READ, "create", "update", "patch"),
    ),
)
"""For the loop, in its namespace: the leader's Lease, and the Leases that hosts renew."""

LOOP_REPORTS = (
    Permission(
        "coordination.k8s.io",
        ("leases",),
        (*FOLLOW, "create", "patch", "delete"),
        "The loop reads how many requests wait at each gateway, and deletes the report of one whose pod is gone. A "
        "gateway in the loop's process reports with the loop's account.",
    ),
)
"""For the loop, in the namespace of the gateways' reports."""

AGENT_HOST = (
    Permission(
        OURS,
        ("hosts",),
        (*READ, "create"),
        "An agent creates its Host if it does not exist, and reads the settings that users made in it.",
    ),
    Permission("", ("namespaces",), ("get",), "A Host can be restricted to namespaces with certain labels."),
    Permission(OURS, ("hosts/status",), ("patch",)),
)
"""For the agent of a host, which reports the host's status. The policies of `identities` restrict it to its host."""

AGENT = (
    *AGENT_HOST,
    Permission(
        OURS, ("hostprocesses",), READ, "The agent's plan. RBAC cannot restrict a rule to the plans of one host."
    ),
    Permission(OURS, ("hostprocesses/status",), ("patch",)),
)
"""For the agent of a host that serves all namespaces; with a binding in one namespace, its permissions there."""

AGENT_LEASES = (Permission("coordination.k8s.io", ("leases",), ("get", "create", "update")),)
"""For the agent of a host: its Lease, in the system namespace only."""

_WRITE = ("create", "update", "patch", "delete")
USER_VIEW = (
    Permission(
        LLMKUBE, ("models", "inferenceservices", "gpuquotas", "modelrouters", "modelpools", "loraadapters"), READ
    ),
    Permission(OURS, ("hostprocesses",), READ),
    Permission(OURS, ("hosts",), READ, "Cluster-scoped: has an effect only with a ClusterRoleBinding."),
    Permission(
        "apiregistration.k8s.io",
        ("apiservices",),
        ("get",),
        "Cluster-scoped. A preview shows autoscalers that follow the requests if Herdsman serves their metric.",
        names=("v1beta1.external.metrics.k8s.io",),
    ),
)
"""For a person who looks at services: Herdsman's kinds, besides Kubernetes' role `view`."""

USER_EDIT = (
    *USER_VIEW,
    Permission(LLMKUBE, ("models", "inferenceservices", "modelrouters", "modelpools", "loraadapters"), _WRITE),
)
"""For a person who writes services: Herdsman's kinds, besides Kubernetes' role `edit`."""

_KSERVE_KINDS = ("llminferenceservices", "llminferenceserviceconfigs")
USER_DIALECTS: dict[str, tuple[tuple[Permission, ...], tuple[Permission, ...]]] = {
    "kserve": (
        (Permission("serving.kserve.io", _KSERVE_KINDS, READ),),
        (Permission("serving.kserve.io", _KSERVE_KINDS, _WRITE),),
    ),
    "llmaz": (
        (
            Permission("inference.llmaz.io", ("playgrounds", "services", "backendruntimes"), READ),
            Permission("llmaz.io", ("openmodels",), READ),
        ),
        (Permission("inference.llmaz.io", ("playgrounds", "services"), _WRITE),),
    ),
}
"""The same for the other dialects, to view and to edit, if the dialect is used."""

PREVIEW = (
    Permission(
        "apps",
        ("deployments",),
        ("get",),
        "Its variables are the settings that objects are rendered with; no variable holds a secret.",
        names=("herdsman",),
    ),
)
"""For a person who previews, in the operator's namespace."""

GATEWAY = (
    Permission(LLMKUBE, ("inferenceservices",), FOLLOW, "The services of all dialects: their names and states."),
    Permission(LLMKUBE, ("modelrouters",), FOLLOW, "The routers. The Secrets of their providers need a Role each."),
    Permission(LLMKUBE, ("loraadapters",), FOLLOW, "The adapters: their names, and the replicas that have them."),
    Permission("serving.kserve.io", ("llminferenceservices",), FOLLOW),
    Permission("inference.llmaz.io", ("playgrounds", "services"), FOLLOW),
    Permission("discovery.k8s.io", ("endpointslices",), FOLLOW, "The addresses of replicas."),
)
"""For the gateway, in all namespaces."""

GATEWAY_KEYS = (Permission("", ("secrets",), FOLLOW),)
"""For the gateway, in the namespace of its clients' keys, which has no other Secrets."""

GATEWAY_REPORTS = (
    Permission(
        "coordination.k8s.io",
        ("leases",),
        ("create", "patch", "delete"),
        "The report of how many requests are under way and wait, by which the loop scales and wakes services.",
    ),
)
"""For the gateway, in the namespace of the reports, which has nothing else. The gateway writes nothing besides."""

GATEWAY_ENGINES = (Permission("", ("secrets",), ("get",), "The gateway reads the Secrets that services name."),)
"""For the gateway, in namespaces whose engines have keys or certificates of their own."""

ENGINE_KEYS = (
    Permission(
        "",
        ("secrets",),
        ("create",),
        "Keys of engines that only the gateway may use (herdsman.dev/engine-key). The loop reads and changes none.",
    ),
    Permission(
        LLMKUBE,
        ("inferenceservices",),
        ("patch",),
        "The loop writes the annotation of the next key when one is older than herdsman.dev/engine-key-max-age.",
    ),
)
"""For the loop, in all namespaces, if a gateway is installed."""

OPTIONAL_GROUPS = frozenset({"gateway.networking.k8s.io", "keda.sh", "monitoring.coreos.com", "pyrra.dev"})
"""API groups of extensions that a cluster may lack."""


def requests(permissions: tuple[Permission, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return each (group, resource, verb) that the rules allow, in the order of the table."""
    return tuple(request for permission in permissions for request in permission.requests)
