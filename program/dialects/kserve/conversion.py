"""Converts KServe's kinds between v1alpha1 and v1alpha2 without loss. Pure.

The API server stores objects as v1alpha2, and all other modules read v1alpha2. A field that only v1alpha1 has
(criticality) is kept in KServe's own annotations. Fields that only v1alpha2 has are kept in an annotation of Herdsman,
so that a client that reads and writes v1alpha1 erases nothing. Changes by that client have precedence.
`automation.webhook` calls this for the API server.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from kubeapi.json_types import Json

GROUP = "serving.kserve.io"
HUB = f"{GROUP}/v1alpha2"
SPOKE = f"{GROUP}/v1alpha1"
KINDS = ("LLMInferenceService", "LLMInferenceServiceConfig")

MODEL_CRITICALITY = "internal.serving.kserve.io/model-criticality"
LORA_CRITICALITIES = "internal.serving.kserve.io/lora-criticalities"
HUB_FIELDS = "herdsman.dev/v1alpha2-fields"
"""On an object of v1alpha1: a JSON object with the fields that only v1alpha2 has."""

_Json = dict[str, Any]
_POOL = ("router", "scheduler", "pool")
_LOST = (
    ("spec", "kvCacheOffloading"),
    ("spec", "prefill", "kvCacheOffloading"),
    ("spec", "model", "confidential"),
    ("status", "appliedConfigs"),
    ("status", "workloads"),
    ("status", "router", "group"),
)


def to_hub(document: Json) -> _Json:
    """Return the object in v1alpha2; an object that is not of v1alpha1 is returned itself."""
    if document.get("apiVersion") != SPOKE:
        return document
    hub: _Json = copy.deepcopy(document)
    hub["apiVersion"] = HUB
    kept = _take_annotation(hub, HUB_FIELDS)
    spec = hub.get("spec")
    if isinstance(spec, dict):
        _criticality_up(hub, spec)
        _pool_up(spec, kept.get("pool"))
    for path in _LOST:
        _restore(hub, path, kept.get(".".join(path)))
    _restore_addresses(hub, kept.get("addresses"))
    return hub


def from_hub(document: Json) -> _Json:
    """Return the object in v1alpha1; an object that is not of v1alpha2 is returned itself."""
    if document.get("apiVersion") != HUB:
        return document
    spoke: _Json = copy.deepcopy(document)
    spoke["apiVersion"] = SPOKE
    kept: _Json = {}
    for path in _LOST:
        lost = _remove(spoke, path)
        if lost is not None:
            kept[".".join(path)] = lost
    spec = spoke.get("spec")
    if isinstance(spec, dict):
        _criticality_down(spoke, spec)
        if lost := _pool_down(spec):
            kept["pool"] = lost
    if lost := _addresses_down(spoke):
        kept["addresses"] = lost
    if kept:
        written = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        _set_annotations(spoke, {**_annotations(spoke), HUB_FIELDS: written})
    return spoke


# --- criticality: fields of v1alpha1, annotations of v1alpha2 --------------------------------------------------------


def _criticality_up(hub: _Json, spec: _Json) -> None:
    model = spec.get("model")
    if not isinstance(model, dict):
        return
    annotations = _annotations(hub)
    annotations.pop(MODEL_CRITICALITY, None)
    annotations.pop(LORA_CRITICALITIES, None)
    if criticality := model.pop("criticality", None):
        annotations[MODEL_CRITICALITY] = str(criticality)
    of_adapters = {
        str(index): adapter.pop("criticality")
        for index, adapter in enumerate(_adapters(model))
        if adapter.get("criticality")
    }
    if of_adapters:
        annotations[LORA_CRITICALITIES] = json.dumps(of_adapters, sort_keys=True, separators=(",", ":"))
    _set_annotations(hub, annotations)


def _criticality_down(spoke: _Json, spec: _Json) -> None:
    model = spec.get("model")
    if not isinstance(model, dict):
        return
    annotations = _annotations(spoke)
    criticality = annotations.pop(MODEL_CRITICALITY, None)
    of_adapters = _read_object(annotations.pop(LORA_CRITICALITIES, None))
    if criticality:
        model["criticality"] = criticality
    for index, adapter in enumerate(_adapters(model)):
        if isinstance(value := of_adapters.get(str(index)), str):
            adapter["criticality"] = value
    _set_annotations(spoke, annotations)


def _adapters(model: _Json) -> list[_Json]:
    lora = model.get("lora")
    adapters = lora.get("adapters") if isinstance(lora, dict) else None
    return _objects(adapters)


# --- the pool: inference.networking.x-k8s.io/v1alpha2 in v1alpha1, v1 in v1alpha2 ------------------------------------


def _pool_up(spec: _Json, kept: Any) -> None:
    pool = _at(spec, _POOL)
    old = pool.get("spec") if pool is not None else None
    if pool is None or not isinstance(old, dict):
        return
    kept = kept if isinstance(kept, dict) else {}
    new: _Json = {}
    if isinstance(selector := old.get("selector"), dict):
        new["selector"] = {"matchLabels": selector}
    if (port := old.get("targetPortNumber")) is not None:
        # The further ports belong to the first one: another first port means another list.
        ports = kept.get("targetPorts")
        further = ports[1:] if isinstance(ports, list) and ports[:1] == [{"number": port}] else []
        new["targetPorts"] = [{"number": port}, *further]
    if kept.get("appProtocol", "http"):
        new["appProtocol"] = kept.get("appProtocol", "http")
    if isinstance(picker := old.get("extensionRef"), dict):
        found = {key: value for key, value in picker.items() if key != "portNumber"}
        if picker.get("portNumber") is not None:
            found["port"] = {"number": picker["portNumber"]}
        new["endpointPickerRef"] = found
    pool["spec"] = new


def _pool_down(spec: _Json) -> _Json:
    """Rewrite the pool in place and return the fields that v1alpha1 lacks."""
    pool = _at(spec, _POOL)
    new = pool.get("spec") if pool is not None else None
    if pool is None or not isinstance(new, dict):
        return {}
    old: _Json = {}
    kept: _Json = {}
    selector = new.get("selector")
    if isinstance(selector, dict) and isinstance(selector.get("matchLabels"), dict):
        old["selector"] = selector["matchLabels"]
    ports = new.get("targetPorts")
    if isinstance(ports, list) and ports and isinstance(ports[0], dict):
        old["targetPortNumber"] = ports[0].get("number")
        if len(ports) > 1:
            kept["targetPorts"] = ports
    if new.get("appProtocol") != "http":
        kept["appProtocol"] = new.get("appProtocol")
    if isinstance(picker := new.get("endpointPickerRef"), dict):
        found = {key: value for key, value in picker.items() if key != "port"}
        if isinstance(port := picker.get("port"), dict) and port.get("number") is not None:
            found["portNumber"] = port["number"]
        old["extensionRef"] = found
    pool["spec"] = old
    return kept


# --- status: addresses of v1alpha1 have no origin and no models -------------------------------------------------------


def _addresses_down(spoke: _Json) -> _Json:
    lost: _Json = {}
    for index, address in enumerate(_addresses(spoke)):
        beyond = {key: address.pop(key) for key in ("origin", "models") if key in address}
        if beyond:
            lost[str(index)] = {**beyond, "url": address.get("url")}
    return lost


def _restore_addresses(hub: _Json, kept: Any) -> None:
    if not isinstance(kept, dict):
        return
    for index, address in enumerate(_addresses(hub)):
        beyond = kept.get(str(index))
        if isinstance(beyond, dict) and beyond.get("url") == address.get("url"):
            for key in ("origin", "models"):
                if key in beyond and key not in address:
                    address[key] = beyond[key]


def _addresses(document: _Json) -> list[_Json]:
    status = document.get("status")
    addresses = status.get("addresses") if isinstance(status, dict) else None
    return _objects(addresses)


# --- documents -------------------------------------------------------------------------------------------------------


def _at(document: _Json, path: tuple[str, ...]) -> _Json | None:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _remove(document: _Json, path: tuple[str, ...]) -> Any:
    parent = _at(document, path[:-1])
    return parent.pop(path[-1], None) if parent is not None else None


def _restore(document: _Json, path: tuple[str, ...], value: Any) -> None:
    """Restore a kept value if its parent still exists. A part that a user removed stays removed."""
    parent = _at(document, path[:-1])
    if value is not None and parent is not None:
        parent.setdefault(path[-1], value)


def _read_object(written: Any) -> _Json:
    """Read a JSON object from an annotation. Anything else was written by a person and counts as an empty object."""
    try:
        found = json.loads(written) if isinstance(written, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _take_annotation(document: _Json, name: str) -> _Json:
    annotations = _annotations(document)
    written = annotations.pop(name, None)
    if written is not None:
        _set_annotations(document, annotations)
    return _read_object(written)


def _objects(value: Any) -> list[_Json]:
    """Return the objects of a list. Other members stay in the document unchanged."""
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []


def _annotations(document: _Json) -> _Json:
    found = document.get("metadata", {}).get("annotations")
    return dict(found) if isinstance(found, dict) else {}


def _set_annotations(document: _Json, annotations: _Json) -> None:
    metadata = document.setdefault("metadata", {})
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
