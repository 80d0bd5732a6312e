"""The names, labels, annotations and paths of llmaz's objects. Users and tools of llmaz depend on them."""

from __future__ import annotations

LABEL_MODEL = "llmaz.io/model-name"
LABEL_FAMILY = "llmaz.io/model-family-name"
ANNOTATION_FLAVORS = "llmaz.io/inference-service-flavors"
"""On pods: the flavors that the service asks for, comma-separated."""
ANNOTATION_SKIP_LOADER = "llmaz.io/skip-model-loader"
"""On a Playground or Service, `"true"`: the engine fetches the model itself."""
ANNOTATION_ACTIVATOR = "activator.llmaz.io/model-name"
"""On the Service in front of the pods: the main model."""
ANNOTATION_WORKLOAD = "herdsman.dev/workload"
"""On a Playground or Service, `LeaderWorkerSet`: use one even if a Deployment is sufficient."""

LABEL_GROUP = "leaderworkerset.sigs.k8s.io/name"
"""On pods of a LeaderWorkerSet: its name."""
LABEL_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"

RUNNER = "model-runner"
"""The container that serves."""
LOADER = "model-loader"
MODELS = "/workspace/models/"
MODEL_VOLUME = "model-volume"
SHARED_MEMORY = "dshm"
PORT = 8080
"""The port of every service for clients, whatever port its container listens on."""

CONFIG_NAMESPACE = "llmaz-system"
CONFIG_NAME = "llmaz-global-config"
LOADER_IMAGE = "inftyai/model-loader:v0.0.10"


def front_name(service: str) -> str:
    """Return the name of the Kubernetes Service in front of the pods."""
    return f"{service}-lb"


def loader_name(index: int) -> str:
    """Return the name of the init container that fetches the model of this index."""
    return f"{LOADER}-{index}" if index else LOADER
