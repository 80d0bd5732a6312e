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
    uri: str = required("Address of the adapter's weights.", min_length=1, max_length=URI_LENGTH, pattern=URI)
    name: str = required(
        "Value of `model` in requests that use the adapter.",
        min_length=1,
        max_length=NAME_LENGTH,
        x_kubernetes_validations=[SEGMENTS],
    )


LORA_RULES = (
    rule(
        "!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, a.name == b.name))",
        "the names of adapters must differ",
        field=".adapters",
    ),
)


class Lora(CrdModel):
    """Adapters that requests choose by name."""

    model_config = with_rules(*LORA_RULES)
    adapters: list[LoraAdapter] = optional("The adapters.", [], max_length=64)
    max_rank: int | None = optional("Maximum rank of an adapter.", ge=1)
    max_adapters: int | None = optional("Maximum number of adapters on the device at once.", ge=1)
    max_cpu_adapters: int | None = optional(
        "Maximum number of adapters in memory at once.", name="maxCpuAdapters", ge=1
    )


class Confidential(CrdModel):
    """The model is encrypted. A key broker releases the key to pods that it trusts."""

    enabled: bool | None = optional("Decrypt the model after the download.")
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
        "Address of the weights; required unless a base config sets it.", max_length=URI_LENGTH, pattern=URI
    )
    name: str | None = optional("Value of `model` in requests; the service's name when absent.", max_length=NAME_LENGTH)
    lora: Lora | None = optional("LoRA adapters of the model.")
    confidential: Confidential | None = optional("Settings for an encrypted model.")


class StorageInitializer(CrdModel):
    enabled: bool = optional(
        "False: Herdsman downloads nothing and passes the path of the URI to the engine unchanged.", True
    )


class Tracing(CrdModel):
    """OpenTelemetry traces. An empty object uses the values of the presets."""

    exporter_endpoint: str | None = optional("Address that traces are sent to.", max_length=URI_LENGTH)
    sampler: str | None = optional("Sampler, which selects the requests to trace.", max_length=63)
    sampler_arg: str | None = optional("Argument of the sampler.", max_length=63)
    exporter: str | None = optional("Exporter of the traces, such as `otlp`.", max_length=63)


_MODE = "(has({0}.scaling.wva) ? (has({0}.scaling.wva.hpa) ? 'wva-hpa' : 'wva-keda') : 'keda')"

SERVICE_RULES = (
    *WORKLOAD_RULES,
    rule(
        "has(self.baseRefs) && size(self.baseRefs) > 0"
        " || has(self.model) && has(self.model.uri) && self.model.uri != ''",
        "model.uri is required unless a base config sets it",
        field=".model.uri",
    ),
    rule(
        "!has(self.model) || !has(self.model.uri) || self.model.uri == ''"
        " || has(self.storageInitializer) && has(self.storageInitializer.enabled) && !self.storageInitializer.enabled"
        f" || self.model.uri.matches('^({_SCHEMES})://')",
        f"the scheme of model.uri is not supported; use {', '.join(FETCHED_SCHEMES)}, or on hosts also "
        f"{', '.join(HOST_SCHEMES)}",
        field=".model.uri",
    ),
    rule(
        "!has(self.scaling) || !has(self.prefill) || !has(self.prefill.scaling) || "
        f"{_MODE.format('self')} == {_MODE.format('self.prefill')}",
        "spec.scaling and spec.prefill.scaling must use the same autoscaler",
        field=".prefill.scaling",
    ),
)


class ServiceSpec(WorkloadSpec):
    """A model and the pods that serve it."""

    model_config = with_rules(*SERVICE_RULES)
    model: ModelSpec | None = optional("The model.")
    storage_initializer: StorageInitializer | None = optional("Download of the model into the pods.")
    prefill: WorkloadSpec | None = optional("Separate pods for prefill, the first step of each request.")
    router: Router | None = optional("Router: how requests reach the pods.")
    tracing: Tracing | None = optional("Tracing of requests.")
    base_refs: list[ObjectRef] = optional(
        "Configs whose fields the spec overrides, in order; later configs override earlier ones.", [], max_length=32
    )


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
        rule("!has(self.baseRefs)", "a config cannot have baseRefs", field=".baseRefs")
    ]
    return found
