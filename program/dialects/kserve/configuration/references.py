"""Resolves references of a rendered spec: gateways, the pool, the endpoint picker's configuration and account. Pure.

The functions return a changed copy; the given spec is not changed.
"""

from __future__ import annotations

from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.dialect import Lookup
from program.dialects.kserve import naming
from program.dialects.kserve.templating.data import pool_name

CONFIG_KEY = "epp"
"""Key of a ConfigMap with the endpoint picker's configuration, unless the reference names one."""
PICKER_PORT = 9002
"""Port of an endpoint picker, unless the pool names one."""
SHARED_CONFIG_PREFIX = "config-scheduler-"
"""ConfigMaps with this prefix are also looked up in KServe's namespace."""

_CONFIG = "spec.router.scheduler.config"
_GATEWAY = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}


def resolved(spec: Json, service: str) -> Json:
    """Set the fields of the router that follow from other fields."""
    router = _object(spec.get("router"))
    if not router:
        return spec
    changed = dict(router)
    scheduler = router.get("scheduler")
    own_pool = isinstance(scheduler, dict) and not _object(scheduler.get("pool")).get("ref")
    if isinstance(scheduler, dict) and own_pool:
        changed["scheduler"] = _scheduler(scheduler, service)
    route = _object(router.get("route"))
    http = _object(route.get("http"))
    if isinstance(http.get("spec"), dict):
        told = _route(http["spec"], router, spec, service)
        changed["route"] = {**route, "http": {**http, "spec": told}}
    return {**spec, "router": changed}


def _scheduler(scheduler: Json, service: str) -> Json:
    template = _object(scheduler.get("template"))
    result = {
        **scheduler,
        "template": {
            **template,
            "serviceAccountName": template.get("serviceAccountName") or naming.scheduler_account(service),
        },
    }
    pool = _object(scheduler.get("pool"))
    if isinstance(pool.get("spec"), dict):
        result["pool"] = {**pool, "spec": _pool(pool["spec"], service)}
    return result


def _pool(pool: Json, service: str) -> Json:
    selector = _object(pool.get("selector"))
    labels = _object(selector.get("matchLabels")) or {
        "app.kubernetes.io/name": service,
        "app.kubernetes.io/part-of": "llminferenceservice",
        "kserve.io/component": "workload",
    }
    picker = _object(pool.get("endpointPickerRef"))
    port = _object(picker.get("port")) or {"number": PICKER_PORT}
    return {
        **pool,
        "selector": {**selector, "matchLabels": labels},
        "endpointPickerRef": {**picker, "name": picker.get("name") or naming.scheduler_service(service), "port": port},
    }


def _route(route: Json, router: Json, spec: Json, service: str) -> Json:
    result = dict(route)
    gateways = _object(router.get("gateway")).get("refs")
    if isinstance(gateways, list) and gateways:
        kept = ("name", "namespace", "sectionName")
        result["parentRefs"] = [
            {**_GATEWAY, **{key: ref[key] for key in kept if ref.get(key)}} for ref in map(_object, gateways)
        ]
    rules = route.get("rules")
    if isinstance(rules, list):
        has_pool = isinstance(router.get("scheduler"), dict)
        result["rules"] = [
            _rule(_object(rule), service, pool_name(service, spec) if has_pool else "") for rule in rules
        ]
    return result


def _rule(rule: Json, service: str, pool: str) -> Json:
    backends = rule.get("backendRefs")
    if not isinstance(backends, list):
        return rule
    return {**rule, "backendRefs": [_backend(_object(backend), service, pool) for backend in backends]}


def _backend(backend: Json, service: str, pool: str) -> Json:
    """Replace the backend by an existing one: the pool that the service refers to, or without a picker its Service."""
    if backend.get("kind") != "InferencePool" or backend.get("name") != naming.pool(service):
        return backend
    if pool:
        return {**backend, "name": pool}
    return {**backend, "group": "", "kind": "Service", "name": naming.workload_service(service)}


def picker_config(spec: Json, namespace: str, look: Lookup) -> Json:
    """Replace the reference `config.ref` by the text of its ConfigMap.

    A missing optional ConfigMap is dropped, so that the default configuration is used. Raises SpecInvalid with reason
    CombineBaseError. A name that is a template stays unresolved.
    """
    scheduler = _object(_object(spec.get("router")).get("scheduler"))
    ref = _object(scheduler.get("config")).get("ref")
    if not isinstance(ref, dict) or "{{" in str(ref.get("name")) + str(ref.get("key")):
        return spec
    text = _config_text(ref, namespace, look)
    config = {key: value for key, value in scheduler["config"].items() if key != "ref"}
    if text is not None:
        config["inline"] = text
    changed = {key: value for key, value in scheduler.items() if key != "config"}
    if config:
        changed["config"] = config
    return {**spec, "router": {**spec["router"], "scheduler": changed}}


def _config_text(ref: Json, namespace: str, look: Lookup) -> str | None:
    name = ref.get("name")
    key = ref.get("key") or CONFIG_KEY
    if not isinstance(name, str) or not name or not isinstance(key, str):
        raise _wrong("name", "is not set; name a ConfigMap")
    places = [namespace]
    if name.startswith(SHARED_CONFIG_PREFIX) and namespace != naming.SYSTEM_NAMESPACE:
        places.append(naming.SYSTEM_NAMESPACE)
    found = next((c for place in places if (c := look(kinds.CONFIG_MAPS, place, name)) is not None), None)
    data = _object(_object(found).get("data"))
    text = data.get(key)
    if isinstance(text, str):
        return text
    if ref.get("optional") is True:
        return None
    otherwise = "or set `optional: true` to use the default configuration"
    if found is None:
        where = " or ".join(f"`{place}`" for place in places)
        raise _wrong("name", f"there is no ConfigMap `{name[:253]}` in namespace {where}; create it, {otherwise}")
    held = ", ".join(f"`{held}`" for held in sorted(data)[:8]) or "none"
    raise _wrong(
        "key", f"ConfigMap `{name[:253]}` has no key `{key[:253]}`; its keys: {held}. Name one of them, {otherwise}"
    )


def _wrong(field: str, why: str) -> SpecInvalid:
    return SpecInvalid(field=f"{_CONFIG}.ref.{field}", why=why, reason="CombineBaseError")


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
