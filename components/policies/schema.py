"""The fields of a policy document, as pydantic models. Unknown fields are errors: a misspelt rule is not enforced."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from program.desired.errors import SpecInvalid
from program.desired.quantities import parse_quantity

API_VERSION = "herdsman.dev/v1alpha1"
KIND = "Policy"
LONGEST_EXPRESSION = 4096
"""Longest CEL expression in characters; the evaluator recurses, and its stack is limited."""
MOST_RULES = 100
"""Number of CEL rules of one policy at most."""

Enforcement = Literal["mandatory", "advisory"]


def _quantity(value: object) -> Decimal:
    """Return a Kubernetes quantity (`500m`, `8`, `16Gi`) as a number."""
    try:
        return parse_quantity(str(value), field="")
    except SpecInvalid as error:
        raise ValueError(error.why) from None


ResourceKind = Literal["ModelRouter", "ModelPool", "LoRAAdapter"]
ServiceKind = Literal["InferenceService", "LLMInferenceService", "Playground", "Service"]
Quantity = Annotated[Decimal, BeforeValidator(_quantity)]
Words = Annotated[tuple[str, ...], Field(min_length=1)]


class Strict(BaseModel):
    """The base of all parts of a policy: camelCase in YAML, and no undeclared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Match(Strict):
    """The services that a policy applies to: services that match all given fields; with no fields, all services."""

    kinds: tuple[ServiceKind | ResourceKind, ...] = ()
    """Without kinds, the policy applies to services of all kinds."""
    namespaces: tuple[str, ...] = ()
    """Globs."""
    namespace_labels: dict[str, str] = {}
    names: tuple[str, ...] = ()
    """Globs."""


class ImageRegistries(Strict):
    allowed: Words
    """Prefixes of images up to a `/`, `:` or `@`: `ghcr.io/ggml-org`, `registry.example.org:5000`."""


class Bounds(Strict):
    min: Quantity | None = None
    max: Quantity | None = None


class Counts(Strict):
    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)


class Resources(Strict):
    """Bounds of the resources of one pod (all its containers together), and of the number of replicas."""

    cpu: Bounds | None = None
    memory: Bounds | None = None
    gpu: Counts | None = None
    replicas: Counts | None = None
    """`max` is compared with the autoscaler's maximum if there is an autoscaler."""
    required: tuple[Literal["cpu", "memory", "ephemeral-storage"], ...] = ()
    """Resources that every engine must request. Pods have requests for CPU and memory but no limits, as in LLMKube."""


class Sources(Strict):
    """Allowed sources of models. A source must match all given fields."""

    schemes: tuple[Literal["https", "http", "hf", "s3", "pvc", "file"], ...] = ()
    hosts: tuple[str, ...] = ()
    """Globs; checked for http and https sources only."""
    patterns: tuple[str, ...] = ()
    """Globs that match the source in the Model."""
    require_sha256: bool = False


class Namespaces(Strict):
    allowed: tuple[str, ...] = ()
    """Globs of the namespaces that may contain services."""
    priority_classes: tuple[str, ...] = ()
    """Names of the PriorityClasses that pods may have."""


class Pods(Strict):
    forbid_privileged: bool = False
    """Forbids privileged containers and an explicit `allowPrivilegeEscalation: true`."""
    forbid_host_path: bool = False
    forbid_host_network: bool = False
    """Also forbids the host's process and IPC namespaces."""
    require_run_as_non_root: bool = False
    forbid_added_capabilities: bool = False


class Hosts(Strict):
    allowed: tuple[str, ...]
    """Globs of host names; an empty list allows no service on a host."""


class Routers(Strict):
    """Allowed backends of ModelRouters outside the cluster. A backend must match all given fields."""

    forbid_external: bool = False
    """Forbids all backends outside the cluster."""
    providers: tuple[Literal["anthropic", "openai", "bedrock", "vertex_ai", "litellm"], ...] = ()
    hosts: tuple[str, ...] = ()
    """Globs of the host in the backend's address."""


class CelRule(Strict):
    """A custom rule. The expression is true for a service that obeys the rule."""

    name: str = Field(min_length=1, max_length=253)
    cel: str = Field(min_length=1, max_length=LONGEST_EXPRESSION)
    message: str = Field(min_length=1, max_length=1024)
    field: str = ""
    """Path of the field that the rule is about (`spec.contextSize`); messages contain its value."""
    fix: str = "change the service, or ask the author of the policy"


class PolicySpec(Strict):
    enforcement: Enforcement = "mandatory"
    match: Match = Match()
    image_registries: ImageRegistries | None = None
    resources: Resources | None = None
    sources: Sources | None = None
    namespaces: Namespaces | None = None
    pods: Pods | None = None
    hosts: Hosts | None = None
    routers: Routers | None = None
    """Applies to ModelRouters, also if `match.kinds` is empty."""
    rules: Annotated[tuple[CelRule, ...], Field(max_length=MOST_RULES)] = ()


class PolicyMetadata(BaseModel):
    """Labels and annotations are not read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=253)


class PolicyDocument(Strict):
    """One document of kind Policy."""

    api_version: Literal["herdsman.dev/v1alpha1"]
    kind: Literal["Policy"]
    metadata: PolicyMetadata
    spec: PolicySpec
