"""Parts of schemas that several kinds of llmaz share: quantities, environment, triggers, status."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

from program.desired.errors import SpecInvalid
from program.desired.quantities import parse_quantity
from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.llmkube.schema.status import Condition as Condition
from program.dialects.pods.schema import QUANTITY, EnvVar

MOST = 16
"""Maximum number of entries of a list or map that a CEL rule iterates over, because the rule's cost must be bounded."""
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SERVICE_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LONGEST_SERVICE = 60
"""Maximum number of characters of a name to which `-lb` is appended."""
KEPT = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
_INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def _checked(value: int | str) -> int | str:
    try:
        parse_quantity(str(value), field="")
    except SpecInvalid as error:
        raise PydanticCustomError("quantity", "{why}", {"why": error.why}) from None
    return value


Quantity = Annotated[
    int | str, AfterValidator(_checked), WithJsonSchema({**_INT_OR_STRING, "pattern": QUANTITY, "maxLength": 32})
]
"""An amount in Kubernetes' format."""
ResourceList = dict[str, Quantity]


def named(pattern: str, longest: int) -> dict[str, Any]:
    """Return a metadata schema for names from which the names of child objects can be derived."""
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": longest, "pattern": pattern}},
    }


class Env(EnvVar):
    name: str = required("Name of the variable.", min_length=1)


class Resources(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.limits) || !has(self.requests) || self.limits.all(name, !(name in self.requests) || "
                    "quantity(string(self.limits[name])).compareTo(quantity(string(self.requests[name]))) >= 0)",
                    "a limit must not be less than the request for the same resource",
                )
            ]
        }
    )
    limits: ResourceList = optional("Maximum resources of the container.", {}, max_length=MOST)
    requests: ResourceList = optional("Resources that the scheduler reserves on a node.", {}, max_length=MOST)


class HpaTrigger(CrdModel):
    behavior: dict[str, Any] | None = optional("Speed of scaling, in the format of autoscaling/v2.")
    metrics: list[dict[str, Any]] = optional("Metrics to scale on, in the format of autoscaling/v2.", [])


class ScaleTrigger(CrdModel):
    hpa: HpaTrigger = required("Scale by a HorizontalPodAutoscaler.")


class Status(CrdModel):
    """The observed state."""

    conditions: list[Condition] = optional(
        "Available and Progressing as in llmaz, then Herdsman's conditions.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    replicas: int | None = optional("Replicas that exist.")
    selector: str | None = optional("Label selector of the pods, for autoscalers.")


class BareStatus(CrdModel):
    """The conditions."""

    conditions: list[Condition] = optional(
        "Conditions; at present no controller writes any.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
