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

    name: str = required("Its name.", min_length=1, max_length=NAME_LENGTH)


class GatewayRef(CrdModel):
    name: str = required("Name of the Gateway.", min_length=1, max_length=NAME_LENGTH)
    namespace: str | None = optional("Its namespace.", max_length=63)
    section_name: str | None = optional("One of its listeners; all when absent.", max_length=NAME_LENGTH)


class IngressRef(CrdModel):
    name: str = required("Name of the Ingress.", min_length=1, max_length=NAME_LENGTH)
    namespace: str | None = optional("Its namespace.", max_length=63)


class ParentRef(CrdModel):
    """What a route attaches to, as the Gateway API writes it."""

    group: str | None = optional("API group of the parent.", max_length=NAME_LENGTH)
    kind: str | None = optional("Kind of the parent; Gateway when absent.", max_length=63)
    namespace: str | None = optional("Its namespace; the route's own when absent.", max_length=63)
    name: str = required("Its name.", min_length=1, max_length=NAME_LENGTH)
    section_name: str | None = optional("One of its listeners.", max_length=NAME_LENGTH)
    port: int | None = optional("One of its ports.", ge=1, le=65535)


class HttpRouteSpec(CrdModel):
    """An HTTPRoute's spec. Only its parents have a schema; the other fields are copied unread."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    parent_refs: list[ParentRef] = optional("What the route attaches to.", [], max_length=_MOST_REFS)


class HttpRouting(CrdModel):
    model_config = with_rules(
        rule(
            "!has(self.refs) || size(self.refs) == 0 || !has(self.spec)",
            "set refs to routes that are there or the spec of one to be made, and not both",
        )
    )
    refs: list[ObjectRef] = optional("HTTPRoutes that are there already.", [], max_length=_MOST_REFS)
    spec: HttpRouteSpec | None = optional("The HTTPRoute to be made, in place of the one that the presets describe.")


class Routing(CrdModel):
    model_config = with_rules(
        rule("!has(self.weight) || has(self.group)", "group is required with weight", field=".group"),
        rule("!has(self.group) || has(self.weight)", "weight is required with group", field=".weight"),
        rule(
            "!has(self.group) || !has(self.http) || !has(self.http.refs) || size(self.http.refs) == 0",
            "traffic is split by routes that are made for it, and not by http.refs",
            field=".group",
        ),
    )
    http: HttpRouting | None = optional("HTTP requests.")
    group: str | None = optional(
        "Services of one namespace with the same group share requests by weight.",
        max_length=63,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
    )
    weight: int | None = optional("This service's share of the group's requests.", ge=0, le=1000000)


class GatewayRouting(CrdModel):
    refs: list[GatewayRef] = optional("Gateways; the cluster's own when absent.", [], max_length=_MOST_REFS)


class IngressRouting(CrdModel):
    refs: list[IngressRef] = optional("Ingresses that lead here already.", [], max_length=_MOST_REFS)


class LabelMatch(CrdModel):
    match_labels: dict[str, str] = required("Labels of the pods.")


class TargetPort(CrdModel):
    number: int = required("Port of the pods.", ge=1, le=65535)


class EndpointPickerRef(CrdModel):
    """The Service that gateways ask which pod receives a request."""

    group: str = optional("API group.", "", max_length=NAME_LENGTH)
    kind: str = optional("Kind.", "Service", max_length=63)
    name: str = required("Name.", min_length=1, max_length=NAME_LENGTH)
    port: TargetPort | None = optional("Its port.")
    failure_mode: str = optional(
        "What happens while it does not answer: FailOpen or FailClose.", "FailClose", max_length=63
    )


class PoolSpec(CrdModel):
    """An InferencePool's spec in the format of inference.networking.k8s.io/v1."""

    selector: LabelMatch | None = optional("The pods.")
    target_ports: list[TargetPort] = optional("Their ports.", [], max_length=8)
    app_protocol: str | None = optional("What they speak.", "http", max_length=63)
    endpoint_picker_ref: EndpointPickerRef | None = optional("Who picks one.")


class PoolChoice(CrdModel):
    spec: PoolSpec | None = optional("The InferencePool to be made.")
    ref: ObjectRef | None = optional("An InferencePool that is there already.")


class ConfigMapRef(CrdModel):
    name: str = required("Name of the ConfigMap.", min_length=1, max_length=NAME_LENGTH)
    key: str | None = optional("Key in it; `epp` when absent.", max_length=NAME_LENGTH)
    optional: bool | None = optional("True: without it the default configuration holds.")


class SchedulerConfig(CrdModel):
    model_config = with_rules(rule("has(self.inline) != has(self.ref)", "set inline or ref, and not both"))
    inline: dict[str, Any] | None = optional("The endpoint picker's configuration.", min_length=1)
    ref: ConfigMapRef | None = optional("A ConfigMap that holds it.")


class Tokenizer(CrdModel):
    template: PodSpec | None = optional("Its pod, over what the presets say; a PodSpec.")


class Scheduler(CrdModel):
    """The endpoint picker, which chooses a pod for each request."""

    pool: PoolChoice | None = optional("The pods that it chooses among.")
    labels: dict[str, str] | None = optional("Labels of its pods.")
    annotations: dict[str, str] | None = optional("Annotations of its pods.")
    template: PodSpec | None = optional("Its pod, over what the presets say; a PodSpec.")
    config: SchedulerConfig | None = optional("How it chooses.")
    replicas: int | None = optional("Its pods; more than one elect a leader.", ge=1)
    tokenizer: Tokenizer | None = optional("A server that turns text into tokens for it.")


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
            "routes that are there already cannot be led to the cluster's own gateway; name gateway.refs, or leave "
            "gateway out",
            field=".route.http.refs",
        ),
        rule(
            "!has(self.route) || !has(self.route.http) || !has(self.route.http.spec)"
            " || !has(self.route.http.spec.parentRefs) || size(self.route.http.spec.parentRefs) == 0"
            " || !has(self.gateway) || !has(self.gateway.refs) || size(self.gateway.refs) == 0"
            " || size(self.route.http.spec.parentRefs) == size(self.gateway.refs)"
            f" && self.route.http.spec.parentRefs.all(p, self.gateway.refs.exists(g, {_ALIKE}))"
            f" && self.gateway.refs.all(g, self.route.http.spec.parentRefs.exists(p, {_ALIKE}))",
            "parentRefs name other gateways than gateway.refs; leave one of them out",
            field=".route.http.spec",
        ),
        rule(
            "!has(self.ingress) || !has(self.route) || !has(self.route.group)",
            "traffic is split by HTTPRoutes, which an Ingress knows nothing of",
            field=".route.group",
        ),
    )
    route: Routing | None = optional("An HTTPRoute leads requests here.")
    gateway: GatewayRouting | None = optional("The gateways that it attaches to.")
    ingress: IngressRouting | None = optional("Ingresses of yours that lead here.")
    scheduler: Scheduler | None = optional("Each request goes to the pod that suits it best.")
