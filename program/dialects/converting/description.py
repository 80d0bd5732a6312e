"""The description of a service, independent of dialects. Readers build it, writers write it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kubeapi.json_types import Json

Engine = Literal["llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "ollama", "generic"]
ENGINES: tuple[Engine, ...] = ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "ollama", "generic")
NOT_LOST = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
"""Annotations that belong to no dialect and have no meaning elsewhere."""
PEER_PREFIXES = (
    "inference.llmkube.dev/",
    "llmkube.ai/",
    "serving.kserve.io/",
    "internal.serving.kserve.io/",
    "llmaz.io/",
)
"""Prefixes of labels and annotations that have a meaning only in their own dialect."""
OF_ONE_DIALECT = frozenset({"herdsman.dev/workload"})
"""Herdsman's annotations that have a meaning only in one dialect: the kind that serves a Playground."""


@dataclass(frozen=True)
class Loss:
    """One part of a service that the other dialect does not support."""

    document: str
    """Kind and name, as ``Kind `name` ``."""
    field: str
    """Path in that document."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of weights."""

    kind: Literal["hub", "modelscope", "http", "s3", "oss", "gcs", "pvc", "path", "ollama", "oci"]
    address: str
    """- hub, modelscope: `org/repo`
    - http: the URL
    - s3, oss, gcs: the text after the scheme
    - pvc: `claim/path`
    - path: an absolute path
    - ollama: `name:tag`
    - oci: the image
    """
    revision: str = ""
    file: str = ""
    """The one file of a repository or prefix that the engine opens."""
    files: tuple[str, ...] = ()
    """The files to fetch from a repository or prefix; empty means all."""

    @property
    def is_gguf(self) -> bool:
        """Return whether this is a model for llama.cpp."""
        return (self.file or self.address).lower().endswith(".gguf")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model in addition to the main one: a draft, or an adapter."""

    name: str
    source: Source


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """An autoscaler."""

    min_replicas: int = 1
    max_replicas: int
    metrics: tuple[Json, ...] = ()
    """In the format of autoscaling/v2."""
    behavior: Json | None = None


@dataclass(frozen=True, kw_only=True)
class Description:
    """A service. Empty values are not set. `origins` has the path of each field in the source document."""

    document: str
    dialect: str
    name: str
    namespace: str
    source: Source
    engine: Engine
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    model_name: str = ""
    """Name of the object that describes the model, if there is a separate one."""
    served_name: str = ""
    """The model's name for clients, if the service sets one."""
    aliases: tuple[str, ...] = ()
    """Further names for clients. Those of llama.cpp are in its arguments."""
    model_format: str = ""
    quantization: str = ""
    sha256: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """The engine's arguments, without model, address and port. For a generic server all arguments."""
    env: tuple[Json, ...] = ()
    hub_token: Json | None = None
    """The Secret's `name` and `key` with the token for Hugging Face."""
    requests: dict[str, str] = field(default_factory=dict)
    """cpu, memory and ephemeral-storage."""
    limits: dict[str, str] = field(default_factory=dict)
    """The same resources; empty if they are not limited."""
    gpus: int = 0
    gpu_resource: str = ""
    shared_memory: str = ""
    port: int = 0
    """The port of a generic server. For other engines the writer sets the port."""
    probes: dict[str, Json] = field(default_factory=dict)
    """By `startup`, `liveness`, `readiness`."""
    replicas: int = 1
    scaling: Scaling | None = None
    draft: Weights | None = None
    adapters: tuple[Weights, ...] = ()
    pod: dict[str, Any] = field(default_factory=dict)
    """Fields of a PodSpec that the user set: nodeSelector, tolerations, affinity, imagePullSecrets …"""
    security: dict[str, Any] = field(default_factory=dict)
    """The securityContext of the container that serves; that of the pod is in `pod`."""
    volume_mounts: tuple[Json, ...] = ()
    pod_labels: dict[str, str] = field(default_factory=dict)
    pod_annotations: dict[str, str] = field(default_factory=dict)
    worker: Description | None = None
    """The other pods of a group whose leader this is: only their container and pod fields."""
    group_size: int = 0
    """Number of pods in such a group, with the leader; 0 for no group."""
    origins: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    """The fields that the reader does not support."""

    def origin(self, name: str) -> str:
        """Return the path of a field in the source document; for a member of a field, the path of the field."""
        if name.startswith(("labels[", "annotations[")):
            return f"metadata.{name}"
        return self.origins.get(name) or self.origins.get(name.partition(".")[0]) or name


_ALWAYS = frozenset({"document", "dialect", "name", "namespace", "source", "engine", "origins", "losses"})
"""Fields that every writer writes or refuses."""


class TrackedDescription:
    """A description that records which fields a writer uses. The other fields become losses."""

    def __init__(self, description: Description, *, target: str, apart: str = "") -> None:
        """`apart` is appended to names of models and runtimes that other services use; empty for none."""
        self.description = description
        self._apart = apart
        self._target = target
        self._used: set[str] = set()
        self._losses: list[Loss] = []

    def shared_name(self, name: str) -> str:
        """Return the name of an object that several services may share."""
        return f"{name[: max(1, 62 - len(self._apart))]}-{self._apart}" if self._apart else name

    def use(self, name: str) -> Any:
        """Return a field, and mark it as written. `name.member` marks one member of an object."""
        self._used.add(name)
        whole, _, member = name.partition(".")
        value = getattr(self.description, whole)
        return value.get(member) if member else value

    def add_loss(self, name: str, why: str) -> None:
        """Add a loss: the field cannot be written, because of `why`."""
        self._used.add(name)
        self._losses.append(Loss(self.description.document, self.description.origin(name), why))

    def include(self, part: TrackedDescription) -> None:
        """Add the losses of a part that was written separately."""
        self._losses += part.losses()

    def losses(self) -> tuple[Loss, ...]:
        """Return all losses."""
        return (*self._losses, *self._unwritten())

    def _unwritten(self) -> Iterator[Loss]:
        for each in fields(self.description):
            value = getattr(self.description, each.name)
            if each.name in _ALWAYS or each.name in self._used or value in (None, "", 0, (), {}):
                continue
            names = [each.name]
            if isinstance(value, dict):
                names = [f"{each.name}.{member}" for member in value if f"{each.name}.{member}" not in self._used]
            for name in names:
                yield Loss(
                    self.description.document, self.description.origin(name), f"{self._target} has no field for it"
                )
