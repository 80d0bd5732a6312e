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
    "Owner references that block the owner's deletion, for `kubectl delete --cascade=foreground`. Asked for where the "
    "admission plugin OwnerReferencesPermissionEnforcement is on, as in OpenShift."
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
    Permission(LLMKUBE, ("models/status", "inferenceservices/status", "gpuquotas/status"), ("patch",)),
    Permission(
        LLMKUBE,
        ("inferenceservices/finalizers",),
        ("update",),
        OWNING,
    ),
    Permission(LLMKUBE, ("gpuquotas",), FOLLOW),
    Permission(OURS, ("hostprocesses",), MAKE),
    Permission(OURS, ("hosts",), READ, "Hosts: placed on, and said to be lost; those without an agent are spoken for."),
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
        "Extensions that a cluster may have: they are used where they are served, and these rules are idle elsewhere.",
    ),
    Permission("keda.sh", ("scaledobjects",), MAKE),
    Permission("monitoring.coreos.com", ("podmonitors",), MAKE),
    Permission("pyrra.dev", ("servicelevelobjectives",), MAKE),
    Permission(
        "",
        ("persistentvolumeclaims",),
        (*READ, "create", "patch"),
        "Claims are made and never deleted: they hold weights that took hours to fetch.",
    ),
    Permission(
        "",
        ("pods",),
        (*READ, "patch", "delete"),
        "Patched to take do-not-disrupt off pods that serve; deleted, one at a time, when they take requests and do "
        "not answer.",
    ),
    Permission(
        "",
        ("pods/status",),
        ("patch",),
        "The condition that a replica answered a completion, for which a pod's readiness gate may wait.",
    ),
    Permission(
        "",
        ("pods/proxy",),
        ("get", "create"),
        "Asks replicas themselves, wherever the loop runs: GET for metrics and whether they are idle, POST for one "
        "completion after each start. Without it no replica is asked, and health alone makes a service Ready.",
    ),
    Permission(
        "",
        ("pods/log",),
        ("get",),
        "The beginning of an engine's log says which device computes; the end of a downloader's says how far it is.",
    ),
    Permission(
        "batch",
        ("jobs",),
        (*FOLLOW, "create", "patch", "delete"),
        "A Model with spec.prefetch is fetched by a Job before any service asks for it; a Job for another source is "
        "ended.",
    ),
    Permission(
        "",
        ("pods/eviction",),
        ("create",),
        "Pods that are older than spec.maxPodLifetime allows; eviction respects PodDisruptionBudgets.",
    ),
    Permission(
        "apps", ("replicasets",), ("list",), "A rollback takes the last template that served from its ReplicaSet."
    ),
    Permission(
        "apps",
        ("controllerrevisions",),
        ("list", "create", "patch", "delete"),
        "What was applied, when and by whom: one revision for each change of a service, which goes with it.",
    ),
    Permission(
        "",
        ("nodes", "namespaces"),
        FOLLOW,
        "Namespaces: quotas select them by label, and in one that is being deleted nothing is made.",
    ),
    Permission("scheduling.k8s.io", ("priorityclasses",), FOLLOW, "For the place of a service in the queue for GPUs."),
    Permission(
        "discovery.k8s.io",
        ("endpointslices",),
        MAKE,
        "Endpoints of processes on hosts, and of sleeping services; those of a lost host are taken out.",
    ),
    Permission("", ("events",), ("create", "patch")),
)
"""For the loop, in all namespaces. It reads no Secrets: pods use them by secretKeyRef."""

GROUPS = Permission("leaderworkerset.x-k8s.io", ("leaderworkersets",), MAKE, "Groups of pods over several nodes.")
SETTINGS = Permission(
    "",
    ("configmaps",),
    FOLLOW,
    "The peer's settings, and a scheduler's configuration where a user keeps it apart. Each is followed by its name.",
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
            "Patched to label them as KServe's webhook does, and to take its finalizer off those that are deleted.",
        ),
        Permission(
            "serving.kserve.io",
            ("llminferenceserviceconfigs",),
            (*FOLLOW, "patch"),
            "Patched to take KServe's finalizer off those that are deleted and that no service uses.",
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
            "The API server is told where the loop converts objects of v1alpha1.",
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
            "Pools are made; the others a scheduler's role lets it read, and nobody may give what he has not.",
        ),
        Permission("inference.networking.x-k8s.io", SCHEDULER_READS, READ, "The same, of the older group."),
        Permission("llm-d.ai", SCHEDULER_READS, READ, "The same, of the scheduler's own group."),
        Permission("coordination.k8s.io", ("leases",), (*MAKE, "update"), "Schedulers elect a leader."),
        Permission(
            "",
            ("secrets",),
            ("create", "patch"),
            "Certificates of pods are written. Of a store's Secret the loop sees annotations, never values.",
        ),
        Permission("", ("serviceaccounts",), MAKE, "Accounts of schedulers and of pods with a routing sidecar."),
        Permission(RBAC, ("roles", "rolebindings"), MAKE, "What those accounts may read in their namespace."),
        Permission(
            RBAC, ("clusterrolebindings",), ("get", "create", "patch", "delete"), "Schedulers review access tokens."
        ),
        Permission(RBAC, ("clusterroles",), ("bind",), "That role, and no other.", names=("system:auth-delegator",)),
        Permission("resource.k8s.io", ("resourceclaimtemplates",), MAKE, "Devices by dynamic resource allocation."),
    ),
    "llmaz": (
        Permission("llmaz.io", ("openmodels",), (*FOLLOW, "patch"), "Labelled as llmaz's webhook does."),
        Permission("inference.llmaz.io", ("backendruntimes",), FOLLOW),
        Permission(
            "inference.llmaz.io",
            ("playgrounds", "services"),
            (*READ, "patch"),
            "Patched to label them as llmaz's webhook does.",
        ),
        Permission("inference.llmaz.io", ("playgrounds/status", "services/status"), ("patch",)),
        Permission("inference.llmaz.io", ("playgrounds/finalizers", "services/finalizers"), ("update",), OWNING),
        GROUPS,
        SETTINGS,
    ),
}
"""For the loop, by dialect, besides `LOOP`: granted only if the dialect is used."""

LOOP_LEASES = (
    Permission(
        "coordination.k8s.io",
        ("leases",),
        (*READ, "create", "update", "patch"),
    ),
)
"""For the loop, in its namespace: the leader's Lease, and the Leases that hosts renew."""

AGENT_HOST = (
    Permission(
        OURS,
        ("hosts",),
        (*READ, "create"),
        "An agent makes its own Host where nobody did, and reads what people say of it there.",
    ),
    Permission("", ("namespaces",), ("get",), "A Host may be for namespaces with some labels only."),
    Permission(OURS, ("hosts/status",), ("patch",)),
)
"""For the agent of a host, which reports the host's status. The policies of `identities` restrict it to its host."""

AGENT = (
    *AGENT_HOST,
    Permission(OURS, ("hostprocesses",), READ, "Its plan. RBAC cannot tell the plans of one host from another's."),
    Permission(OURS, ("hostprocesses/status",), ("patch",)),
)
"""For the agent of a host that serves all namespaces; with a binding in one namespace, its permissions there."""

AGENT_LEASES = (Permission("coordination.k8s.io", ("leases",), ("get", "create", "update")),)
"""For the agent of a host: its Lease, in the system namespace only."""

_WRITE = ("create", "update", "patch", "delete")
USER_VIEW = (
    Permission(LLMKUBE, ("models", "inferenceservices", "gpuquotas"), READ),
    Permission(OURS, ("hostprocesses",), READ),
    Permission(OURS, ("hosts",), READ, "Of the cluster: counts where the role is bound by a ClusterRoleBinding."),
)
"""For a person who looks at services: Herdsman's kinds, besides Kubernetes' role `view`."""

USER_EDIT = (*USER_VIEW, Permission(LLMKUBE, ("models", "inferenceservices"), _WRITE))
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

OPTIONAL_GROUPS = frozenset({"gateway.networking.k8s.io", "keda.sh", "monitoring.coreos.com", "pyrra.dev"})
"""API groups of extensions that a cluster may lack."""


def requests(permissions: tuple[Permission, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return each (group, resource, verb) that the rules allow, in the order of the table."""
    return tuple(request for permission in permissions for request in permission.requests)
