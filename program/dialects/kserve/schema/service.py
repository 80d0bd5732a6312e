"""LLMInferenceService (`llmisvc`) and LLMInferenceServiceConfig of serving.kserve.io/v1alpha2."""

from __future__ import annotations

from kubeapi.json_types import Json
from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.kserve.schema.router import ObjectRef, Router
from program.dialects.kserve.schema.workload import NAME_LENGTH, WORKLOAD_RULES, WorkloadSpec, with_rules

URI_LENGTH = 2048
URI = r"^([a-z][a-z0-9+.-]*://\S+)?$"
FETCHED_SCHEMES = ("hf", "s3", "pvc", "oci", "oci+native")
"""Schemes of addresses from which pods can fetch a model."""
HOST_SCHEMES = ("http", "https", "file")
"""Further schemes from which hosts can fetch a model."""
_SCHEMES = "|".join(scheme.replace("+", "[+]") for scheme in (*FETCHED_SCHEMES, *HOST_SCHEMES))
SEGMENTS = rule("!self.split('/').exists(part, part == '.' || part == '..')", "must not hold `.` or `..` as a path")


class LoraAdapter(CrdModel):
    uri: str = required("Where it comes from.", min_length=1, max_length=URI_LENGTH, pattern=URI)
    name: str = required(
        "The `model` of the requests that want it.",
        min_length=1,
        max_length=NAME_LENGTH,
        x_kubernetes_validations=[SEGMENTS],
    )


LORA_RULES = (
    rule(
        "!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, a.name == b.name))",
        "adapters must have names of their own",
        field=".adapters",
    ),
)


class Lora(CrdModel):
    """Adapters that requests choose by name."""

    model_config = with_rules(*LORA_RULES)
    adapters: list[LoraAdapter] = optional("The adapters.", [], max_length=64)
    max_rank: int | None = optional("Largest rank of an adapter.", ge=1)
    max_adapters: int | None = optional("Most adapters on the device at once.", ge=1)
    max_cpu_adapters: int | None = optional("Most adapters in memory at once.", name="maxCpuAdapters", ge=1)


class Confidential(CrdModel):
    """The model is encrypted. A key broker releases the key to pods that it trusts."""

    enabled: bool | None = optional("Fetch the model so.")
    resource_id: str | None = optional(
        "The key, as `kbs:///<repository>/<type>/<tag>`.", max_length=1024, pattern=r"^kbs:///[^/]+/[^/]+/[^/]+$"
    )


MODEL_RULES = (
    rule(
        "!has(self.name) || !has(self.lora) || !has(self.lora.adapters)"
        " || self.lora.adapters.all(a, a.name != self.name)",
        "an adapter must not have the model's name",
        field=".lora.adapters",
    ),
)


class ModelSpec(CrdModel):
    """The model that is served."""

    model_config = with_rules(*MODEL_RULES)
    uri: str | None = optional(
        "Where it comes from; required unless a base config says it.", max_length=URI_LENGTH, pattern=URI
    )
    name: str | None = optional("The `model` of requests; the service's name when absent.", max_length=NAME_LENGTH)
    lora: Lora | None = optional("Adapters of it.")
    confidential: Confidential | None = optional("It is encrypted.")


class StorageInitializer(CrdModel):
    enabled: bool = optional("False: nothing is fetched, and the engine is told the URI's path as it stands.", True)


class Tracing(CrdModel):
    """OpenTelemetry traces. An empty object uses the values of the presets."""

    exporter_endpoint: str | None = optional("Where they go.", max_length=URI_LENGTH)
    sampler: str | None = optional("Which requests are traced.", max_length=63)
    sampler_arg: str | None = optional("The sampler's argument.", max_length=63)
    exporter: str | None = optional("How they go.", max_length=63)


_MODE = "(has({0}.scaling.wva) ? (has({0}.scaling.wva.hpa) ? 'wva-hpa' : 'wva-keda') : 'keda')"

SERVICE_RULES = (
    *WORKLOAD_RULES,
    rule(
        "has(self.baseRefs) && size(self.baseRefs) > 0"
        " || has(self.model) && has(self.model.uri) && self.model.uri != ''",
        "model.uri is required unless a base config says it",
        field=".model.uri",
    ),
    rule(
        "!has(self.model) || !has(self.model.uri) || self.model.uri == ''"
        " || has(self.storageInitializer) && has(self.storageInitializer.enabled) && !self.storageInitializer.enabled"
        f" || self.model.uri.matches('^({_SCHEMES})://')",
        f"a model cannot be fetched so; addresses begin with {', '.join(FETCHED_SCHEMES)}, and on hosts also with "
        f"{', '.join(HOST_SCHEMES)}",
        field=".model.uri",
    ),
    rule(
        "!has(self.scaling) || !has(self.prefill) || !has(self.prefill.scaling) || "
        f"{_MODE.format('self')} == {_MODE.format('self.prefill')}",
        "both sets of pods must be scaled in the same way",
        field=".prefill.scaling",
    ),
)


class ServiceSpec(WorkloadSpec):
    """A model and the pods that serve it."""

    model_config = with_rules(*SERVICE_RULES)
    model: ModelSpec | None = optional("The model.")
    storage_initializer: StorageInitializer | None = optional("Whether the model is fetched for the pods.")
    prefill: WorkloadSpec | None = optional("Pods of their own for the first step of each request.")
    router: Router | None = optional("The way to the pods.")
    tracing: Tracing | None = optional("Traces of requests.")
    base_refs: list[ObjectRef] = optional("Configs that the spec is laid over, in order.", [], max_length=32)


_UNRELAXED = ("type", "description", "maximum", "format", "maxLength", "maxItems")


def relaxed(schema: Json) -> Json:
    """Return a service's schema without the rules that a config may break: it is only a part and contains templates.

    Types of numbers and lists stay. There are no defaults, because a config's default would override a preset.
    """
    kept = {key: value for key, value in schema.items() if key in _UNRELAXED or key.startswith("x-kubernetes-")}
    kept.pop("x-kubernetes-validations", None)
    if schema.get("type") == "integer" and "minimum" in schema:
        kept["minimum"] = schema["minimum"]
    if "anyOf" in schema:
        kept["anyOf"] = schema["anyOf"]
    if "properties" in schema:
        kept["properties"] = {name: relaxed(member) for name, member in schema["properties"].items()}
    if "items" in schema:
        kept["items"] = relaxed(schema["items"])
    if "additionalProperties" in schema:
        kept["additionalProperties"] = relaxed(schema["additionalProperties"])
    return kept


def config_spec(service_spec: Json) -> Json:
    """Return the schema of a config's spec, derived from that of a service."""
    found = relaxed(service_spec)
    found["description"] = "Part of a service's spec, whose strings may hold template expressions."
    found["x-kubernetes-validations"] = [
        rule("!has(self.baseRefs)", "a config cannot be laid over others", field=".baseRefs")
    ]
    return found
