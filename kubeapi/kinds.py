"""The kinds that Herdsman reads and writes, and their paths on the API server.

Used by all callers of `kubeapi.client`. `KubeClient.mapping` returns kinds that are not listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Kind:
    """One REST resource: `plural` is its path segment; `namespaced` means that its path contains a namespace."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def full_name(self) -> str:
        """`group/version/Kind`, the form in `RenderOptions.installed`."""
        return f"{self.api_version}/{self.kind}"

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of a collection, an object or its subresource.

        For a namespaced kind without a namespace, the path is that of the collection over all namespaces. Raises
        ValueError for an object of a namespaced kind without a namespace, and for an empty name.
        """
        parts = [group_version_path(self.api_version)]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        elif self.namespaced and name is not None:
            raise ValueError(f"{self.kind} is namespaced; the namespace of {name!r} is missing")
        parts.append(self.plural)
        if name is not None:
            if not name:
                raise ValueError(f"the name of a {self.kind} is empty")
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def group_version_path(api_version: str) -> str:
    """Return the URL path of a group version."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments", True)
SERVICES = Kind("v1", "Service", "services", True)
PODS = Kind("v1", "Pod", "pods", True)
NODES = Kind("v1", "Node", "nodes", False)
CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True)
SECRETS = Kind("v1", "Secret", "secrets", True)
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps", True)
EVENTS = Kind("v1", "Event", "events", True)
NAMESPACES = Kind("v1", "Namespace", "namespaces", False)
AUTOSCALERS = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True)
ENDPOINT_SLICES = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", True)
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases", True)
CRDS = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False)
API_SERVICES = Kind("apiregistration.k8s.io/v1", "APIService", "apiservices", False)
MODELS = Kind("inference.llmkube.dev/v1alpha1", "Model", "models", True)
INFERENCE_SERVICES = Kind("inference.llmkube.dev/v1alpha1", "InferenceService", "inferenceservices", True)
HOST_PROCESSES = Kind("herdsman.dev/v1alpha1", "HostProcess", "hostprocesses", True)
HOSTS = Kind("herdsman.dev/v1alpha1", "Host", "hosts", False)
GPU_QUOTAS = Kind("inference.llmkube.dev/v1alpha1", "GPUQuota", "gpuquotas", True)
MODEL_POOLS = Kind("inference.llmkube.dev/v1alpha1", "ModelPool", "modelpools", True)
MODEL_ROUTERS = Kind("inference.llmkube.dev/v1alpha1", "ModelRouter", "modelrouters", True)
LORA_ADAPTERS = Kind("inference.llmkube.dev/v1alpha1", "LoRAAdapter", "loraadapters", True)
JOBS = Kind("batch/v1", "Job", "jobs", True)
REPLICA_SETS = Kind("apps/v1", "ReplicaSet", "replicasets", True)
CONTROLLER_REVISIONS = Kind("apps/v1", "ControllerRevision", "controllerrevisions", True)
PRIORITY_CLASSES = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False)
DISRUPTION_BUDGETS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True)
NETWORK_POLICIES = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True)
INGRESSES = Kind("networking.k8s.io/v1", "Ingress", "ingresses", True)
SERVICE_ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts", True)
ROLES = Kind("rbac.authorization.k8s.io/v1", "Role", "roles", True)
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", True)
CLUSTER_ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False)

# Optional extensions, which may be installed at any time.
HTTP_ROUTES = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", True)
SCALED_OBJECTS = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", True)
POD_MONITORS = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", True)
SERVICE_LEVEL_OBJECTIVES = Kind("pyrra.dev/v1alpha1", "ServiceLevelObjective", "servicelevelobjectives", True)
LEADER_WORKER_SETS = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", True)
INFERENCE_POOLS = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools", True)
CLAIM_TEMPLATES = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", True)
OPTIONAL = (
    HTTP_ROUTES,
    SCALED_OBJECTS,
    POD_MONITORS,
    SERVICE_LEVEL_OBJECTIVES,
    LEADER_WORKER_SETS,
    INFERENCE_POOLS,
    CLAIM_TEMPLATES,
)
"""Optional kinds of which Herdsman makes objects for services if the cluster serves them."""
GATEWAYS = Kind("gateway.networking.k8s.io/v1", "Gateway", "gateways", True)

# Custom resources of the dialects other than LLMKube, served if their CRDs are installed.
LLM_SERVICES = Kind("serving.kserve.io/v1alpha2", "LLMInferenceService", "llminferenceservices", True)
LLM_CONFIGS = Kind("serving.kserve.io/v1alpha2", "LLMInferenceServiceConfig", "llminferenceserviceconfigs", True)
OPEN_MODELS = Kind("llmaz.io/v1alpha1", "OpenModel", "openmodels", False)
BACKEND_RUNTIMES = Kind("inference.llmaz.io/v1alpha1", "BackendRuntime", "backendruntimes", False)
PLAYGROUNDS = Kind("inference.llmaz.io/v1alpha1", "Playground", "playgrounds", True)
LLMAZ_SERVICES = Kind("inference.llmaz.io/v1alpha1", "Service", "services", True)

WELL_KNOWN = (
    DEPLOYMENTS,
    SERVICES,
    PODS,
    NODES,
    CLAIMS,
    SECRETS,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    AUTOSCALERS,
    ENDPOINT_SLICES,
    LEASES,
    CRDS,
    MODELS,
    INFERENCE_SERVICES,
    HOST_PROCESSES,
    HOSTS,
    GPU_QUOTAS,
    MODEL_POOLS,
    MODEL_ROUTERS,
    LORA_ADAPTERS,
    JOBS,
    REPLICA_SETS,
    CONTROLLER_REVISIONS,
    PRIORITY_CLASSES,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    INGRESSES,
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
)
"""Kubernetes' own kinds that Herdsman uses, and the kinds of Herdsman's CRDs. Every cluster with Herdsman serves them.
`program.dialects.registry` has the kinds of the other dialects."""
