"""LoRAAdapters with a source for services that describe their pods themselves: those of KServe and llmaz. Pure.

The dialects call it after they have parsed a service; `components.adapter_pods` adds the files to the pods. vLLM and
SGLang then load them by a request of the loop (`automation.serving.adapters`).
"""

from __future__ import annotations

from dataclasses import replace

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import AdapterFile, AdapterReason
from program.desired.workloads import Workloads
from program.dialects.dialect import Lookup, Parsed
from program.dialects.llmkube.parse.adapter import claims_of
from program.dialects.pods.engine import argv_of, engine_in
from program.dialects.registry import ENGINE_CONTAINERS

_LOADING = ("vllm", "sglang")
"""The engines that load adapters while they run."""


def with_adapters(parsed: Parsed, cr: Json, look: Lookup, *, dialect: str) -> Parsed:
    """Add the LoRAAdapters whose files the pods of a service download. Services on hosts get none."""
    desired, metadata = parsed.desired, cr["metadata"]
    if desired.workloads is None or desired.host_placement is not None:
        return parsed
    namespace = str(metadata.get("namespace") or "default")
    crs = look.listed(kinds.LORA_ADAPTERS, namespace)
    if not crs:
        return parsed
    ending = {each["metadata"].get("uid") for each in crs if "deletionTimestamp" in each["metadata"]}
    engine = _engine_of(desired.workloads)
    found = tuple(
        each.file
        for each in sorted(claims_of(crs).values(), key=lambda each: (each.created, each.resource))
        if (each.dialect, each.service) == (dialect, metadata["name"])
        and each.uid not in ending
        and each.file is not None
        and not why_not_downloaded(engine, each.file)[0]
    )
    for file in found:
        look(kinds.LORA_ADAPTERS, namespace, file.resource)  # so that it counts as an object the service refers to
    return replace(parsed, desired=desired.model_copy(update={"adapters": found})) if found else parsed


def why_not_downloaded(engine: str, file: AdapterFile) -> tuple[AdapterReason | None, str]:
    """Return the reason and the message why such a service cannot have an adapter; (None, "") if it can."""
    if engine not in _LOADING:
        why = "downloaded adapters are for vLLM and SGLang; mount the file in the pods and set spec.path"
        return AdapterReason.SOURCE_NOT_SUPPORTED, why
    if not file.source.files:
        address = file.source.source.address
        why = f"{engine} reads a directory, and {address} is one file; name a repository or spec.files"
        return AdapterReason.SOURCE_MISMATCH, why
    return None, ""


def _engine_of(workloads: Workloads) -> str:
    """Return the engine of the pods that serve; empty if it is unknown."""
    main = workloads.main
    template = main.group.leader if main.group is not None and main.group.leader is not None else main.template
    for container in template["spec"].get("containers") or ():
        if container.get("name") in ENGINE_CONTAINERS:
            return engine_in([str(container.get("image") or ""), *argv_of(container)])
    return ""
