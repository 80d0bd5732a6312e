"""The `router` of an LLMInferenceService: gateways, routes, endpoint picker. The fields are those of KServe's CRDs.

An empty object means that the loop creates the object; a reference means that it exists.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.kserve.schema.workload import NAME_LENGTH, PodSpec, with_rules

_MOST_REFS = 16


class ObjectRef(CrdModel):
    """An object in the same namespace."""

    name: str = required("Name of the object.", min_length=1, max_length=NAME_LENGTH)


class GatewayRef(CrdModel):
    name: str = required("Name of the Gateway.", min_length=1, max_length=NAME_LENGTH)
    namespace: str | None = optional("Namespace of the object.", max_length=63)
    section_name: str | None = optional(
        "Name of a listener of the Gateway; all listeners when absent.", max_length=NAME_LENGTH
    )


class IngressRef(CrdModel):
    name: str = required("Name of the Ingress.", min_length=1, max_length=NAME_LENGTH)
    namespace: str | None = optional("Namespace of the object.", max_length=63)


class ParentRef(CrdModel):
    """A parent of a route, in the Gateway API's format."""

    group: str | None = optional("API group of the parent.", max_length=NAME_LENGTH)
    kind: str | None = optional("Kind of the parent; Gateway when absent.", max_length=63)
    namespace: str | None = optional("Namespace of the parent; the route's namespace when absent.", max_length=63)
    name: str = required("Name of the object.", min_length=1, max_length=NAME_LENGTH)
    section_name: str | None = optional("Name of a listener of the parent.", max_length=NAME_LENGTH)
    port: int | None = optional("Port of the parent.", ge=1, le=65535)


class HttpRouteSpec(CrdModel):
    """An HTTPRoute's spec. Only its parents have a schema; the other fields are copied unread."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    parent_refs: list[ParentRef] = optional("Parents that the route attaches to.", [], max_length=_MOST_REFS)


class HttpRouting(CrdModel):
    model_config = with_rules(
        rule(
            "!has(self.refs) || size(self.refs) == 0 || !has(self.spec)",
            "set refs (existing routes) or spec (a new route), and not both",
        )
    )
    refs: list[ObjectRef] = optional("Existing HTTPRoutes.", [], max_length=_MOST_REFS)
    spec: HttpRouteSpec | None = optional(
        "Spec of the HTTPRoute that Herdsman creates, instead of the spec in the presets."
    )


class Routing(CrdModel):
    model_config = with_rules(
        rule("!has(self.weight) || has(self.group)", "group is required with weight", field=".group"),
        rule("!has(self.group) || has(self.weight)", "weight is required with group", field=".weight"),
        rule(
            "!has(self.group) || !has(self.http) || !has(self.http.refs) || size(self.http.refs) == 0",
            "a traffic split needs a route that Herdsman creates; remove http.refs",
            field=".group",
        ),
    )
    http: HttpRouting | None = optional("HTTP requests.")
    group: str | None = optional(
        "Services of one namespace with the same group share requests by weight.",
        max_length=63,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
    )
    weight: int | None = optional("Weight of this service among the services of the group.", ge=0, le=1000000)


class GatewayRouting(CrdModel):
    refs: list[GatewayRef] = optional(
        "Gateways that the route attaches to; the cluster's default Gateway when absent.", [], max_length=_MOST_REFS
    )


class IngressRouting(CrdModel):
    refs: list[IngressRef] = optional("Existing Ingresses of this service.", [], max_length=_MOST_REFS)


class LabelMatch(CrdModel):
    match_labels: dict[str, str] = required("Labels of the pods.")


class TargetPort(CrdModel):
    number: int = required("Port of the pods.", ge=1, le=65535)


class EndpointPickerRef(CrdModel):
    """The Service that gateways ask which pod receives a request."""

    group: str = optional("API group.", "", max_length=NAME_LENGTH)
    kind: str = optional("Kind.", "Service", max_length=63)
    name: str = required("Name.", min_length=1, max_length=NAME_LENGTH)
    port: TargetPort | None = optional("Port of the endpoint picker.")
    failure_mode: str = optional(
        "Handling of requests while the endpoint picker does not answer: FailOpen or FailClose.",
        "FailClose",
        max_length=63,
    )


class PoolSpec(CrdModel):
    """An InferencePool's spec in the format of inference.networking.k8s.io/v1."""

    selector: LabelMatch | None = optional("The pods.")
    target_ports: list[TargetPort] = optional("Their ports.", [], max_length=8)
    app_protocol: str | None = optional("Protocol of the pods.", "http", max_length=63)
    endpoint_picker_ref: EndpointPickerRef | None = optional("Endpoint picker that chooses a pod for each request.")


class PoolChoice(CrdModel):
    spec: PoolSpec | None = optional("Spec of the InferencePool that Herdsman creates.")
    ref: ObjectRef | None = optional("An existing InferencePool.")


class ConfigMapRef(CrdModel):
    name: str = required("Name of the ConfigMap.", min_length=1, max_length=NAME_LENGTH)
    key: str | None = optional("Key in the ConfigMap; `epp` when absent.", max_length=NAME_LENGTH)
    optional: bool | None = optional("True: if the ConfigMap or key is missing, the default configuration applies.")


class SchedulerConfig(CrdModel):
    model_config = with_rules(rule("has(self.inline) != has(self.ref)", "set inline or ref, and not both"))
    inline: dict[str, Any] | None = optional("The endpoint picker's configuration.", min_length=1)
    ref: ConfigMapRef | None = optional("A ConfigMap with the configuration.")


class Tokenizer(CrdModel):
    template: PodSpec | None = optional("PodSpec of its pods; overrides the PodSpec of the presets.")


class Scheduler(CrdModel):
    """The endpoint picker, which chooses a pod for each request."""

    pool: PoolChoice | None = optional("The InferencePool with the pods that the endpoint picker chooses from.")
    labels: dict[str, str] | None = optional("Labels of the endpoint picker's pods.")
    annotations: dict[str, str] | None = optional("Annotations of the endpoint picker's pods.")
    template: PodSpec | None = optional("PodSpec of its pods; overrides the PodSpec of the presets.")
    config: SchedulerConfig | None = optional("Configuration of the endpoint picker.")
    replicas: int | None = optional("Number of the endpoint picker's pods; several pods elect a leader.", ge=1)
    tokenizer: Tokenizer | None = optional("A server that turns text into tokens for the endpoint picker.")


def _same(one: str, other: str, field: str) -> str:
    # Written without a value for absence, and without `==` between booleans, whose cost the API server cannot estimate.
    both = f"has({one}.{field}) && has({other}.{field}) && {one}.{field} == {other}.{field}"
    return f"({both} || !has({one}.{field}) && !has({other}.{field}))"


# `namespace` is a reserved word of CEL, so the API server renames the field.
_ALIKE = f"p.name == g.name && {_same('p', 'g', '__namespace__')} && {_same('p', 'g', 'sectionName')}"


class Router(CrdModel):
    model_config = with_rules(
        rule(
            "!has(self.route) || !has(self.route.http) || !has(self.route.http.refs) || size(self.route.http.refs) == 0"
            " || !has(self.gateway) || has(self.gateway.refs) && size(self.gateway.refs) > 0",
            "existing routes cannot be attached to the cluster's default Gateway; set gateway.refs, or remove gateway",
            field=".route.http.refs",
        ),
        rule(
            "!has(self.route) || !has(self.route.http) || !has(self.route.http.spec)"
            " || !has(self.route.http.spec.parentRefs) || size(self.route.http.spec.parentRefs) == 0"
            " || !has(self.gateway) || !has(self.gateway.refs) || size(self.gateway.refs) == 0"
            " || size(self.route.http.spec.parentRefs) == size(self.gateway.refs)"
            f" && self.route.http.spec.parentRefs.all(p, self.gateway.refs.exists(g, {_ALIKE}))"
            f" && self.gateway.refs.all(g, self.route.http.spec.parentRefs.exists(p, {_ALIKE}))",
            "parentRefs and gateway.refs name different gateways; remove one of the two fields",
            field=".route.http.spec",
        ),
        rule(
            "!has(self.ingress) || !has(self.route) || !has(self.route.group)",
            "an Ingress cannot split traffic; remove ingress or route.group",
            field=".route.group",
        ),
    )
    route: Routing | None = optional("The HTTPRoute to the service.")
    gateway: GatewayRouting | None = optional("The gateways that the route attaches to.")
    ingress: IngressRouting | None = optional("Existing Ingresses of this service. Herdsman does not change them.")
    scheduler: Scheduler | None = optional("The endpoint picker, which chooses the best pod for each request.")
