"""What a policy document may say, as pydantic models. Unknown fields are errors: a rule misspelt is a rule not kept."""

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
"""Characters of a CEL expression; its evaluator recurses, and its stack has an end."""
MOST_RULES = 100
"""CEL rules of one policy."""

Enforcement = Literal["mandatory", "advisory"]


def _quantity(value: object) -> Decimal:
    """Read a Kubernetes quantity (`500m`, `8`, `16Gi`)."""
    try:
        return parse_quantity(str(value), field="")
    except SpecInvalid as error:
        raise ValueError(error.why) from None


Quantity = Annotated[Decimal, BeforeValidator(_quantity)]
Words = Annotated[tuple[str, ...], Field(min_length=1)]


class Strict(BaseModel):
    """What all parts of a policy have in common: camelCase in YAML, nothing beyond the declared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Match(Strict):
    """Which services a policy is about: all that every given part is true of. Nothing given: all services."""

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
    """What one pod asks for, all its containers together, and how many replicas there may be."""

    cpu: Bounds | None = None
    memory: Bounds | None = None
    gpu: Counts | None = None
    replicas: Counts | None = None
    """`max` counts the autoscaler's maximum where there is one."""
    required: tuple[Literal["cpu", "memory", "ephemeral-storage"], ...] = ()
    """What every engine must ask for. Of CPU and memory pods have requests and no limits, as with LLMKube."""


class Sources(Strict):
    """Where models may come from. All that is given must be true."""

    schemes: tuple[Literal["https", "http", "hf", "s3", "pvc", "file"], ...] = ()
    hosts: tuple[str, ...] = ()
    """Globs; asked of http and https sources only."""
    patterns: tuple[str, ...] = ()
    """Globs over the source as the Model has it."""
    require_sha256: bool = False


class Namespaces(Strict):
    allowed: tuple[str, ...] = ()
    """Globs: where services may be at all."""
    priority_classes: tuple[str, ...] = ()
    """Names that pods may have."""


class Pods(Strict):
    forbid_privileged: bool = False
    """Neither privileged containers nor privilege escalation that is asked for."""
    forbid_host_path: bool = False
    forbid_host_network: bool = False
    """Nor the host's process or IPC namespace."""
    require_run_as_non_root: bool = False
    forbid_added_capabilities: bool = False


class Hosts(Strict):
    allowed: tuple[str, ...]
    """Globs of host names; none: no service runs on a host."""


class CelRule(Strict):
    """A rule of the operator's own: the expression is true where it is kept."""

    name: str = Field(min_length=1, max_length=253)
    cel: str = Field(min_length=1, max_length=LONGEST_EXPRESSION)
    message: str = Field(min_length=1, max_length=1024)
    field: str = ""
    """Path that the rule is about (`spec.contextSize`); what stands there is told."""
    fix: str = "change the service, or ask who made the policy"


class PolicySpec(Strict):
    enforcement: Enforcement = "mandatory"
    match: Match = Match()
    image_registries: ImageRegistries | None = None
    resources: Resources | None = None
    sources: Sources | None = None
    namespaces: Namespaces | None = None
    pods: Pods | None = None
    hosts: Hosts | None = None
    rules: Annotated[tuple[CelRule, ...], Field(max_length=MOST_RULES)] = ()


class PolicyMetadata(BaseModel):
    """Labels and annotations are for whoever keeps the files."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=253)


class PolicyDocument(Strict):
    """One document of kind Policy."""

    api_version: Literal["herdsman.dev/v1alpha1"]
    kind: Literal["Policy"]
    metadata: PolicyMetadata
    spec: PolicySpec
