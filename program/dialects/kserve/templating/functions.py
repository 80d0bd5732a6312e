"""The functions of templates: Go's, three of KServe's, and four of Herdsman's. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from program.desired.errors import SpecInvalid
from program.desired.quantities import bytes_of
from program.dialects.kserve.naming import child_name
from program.dialects.kserve.templating.nodes import Functions
from program.dialects.kserve.templating.values import ANY, Struct, TemplateError, field_of, text_of, truth, unwrap, wrap

GRACE_S = 60
"""Termination grace period of the presets' pods in seconds."""
_STOP_DELAY_S = 15
"""Seconds that the preStop hook waits until gateways have removed the pod."""
_RESERVE_S = 5
"""Seconds of the grace period that the engine does not use."""


def functions(spec: Struct) -> Functions:
    """Return the functions by name. KServe's functions use `spec` if they get no argument."""
    return {
        **_FUNCTIONS,
        "kvTransferConfig": lambda workload=spec: kv_transfer_flag(workload),
        "kvTransferJson": lambda workload=spec: kv_transfer_config(workload),
        "shutdownTimeout": lambda workload=spec, delay_s=_STOP_DELAY_S: shutdown_timeout_s(workload, delay_s),
    }


def kv_transfer_config(workload: Any) -> str:
    """Return vLLM's `--kv-transfer-config` for `kvCacheOffloading` of a workload; empty without one.

    Takes the workload or its `kvCacheOffloading`. Key-value blocks are moved to the host's memory, and from there to
    the directories of the tiers.
    """
    value = unwrap(workload)
    if not isinstance(value, dict):
        return ""
    offloading = value.get("kvCacheOffloading", value)
    if not isinstance(offloading, dict) or not offloading.get("cpu"):
        return ""
    try:
        memory = bytes_of(str(offloading["cpu"]), field="")
    except SpecInvalid as error:
        raise TemplateError(f"kvCacheOffloading.cpu: {error.why}") from None
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": memory,
        "eviction_policy": offloading.get("evictionPolicy") or "lru",
        "spec_name": "TieringOffloadingSpec",
    }
    if tiers := offloading.get("secondary") or ():
        extra["secondary_tiers"] = [{"root_dir": kv_tier_path(at), "type": "fs"} for at in range(len(tiers))]
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra, "kv_role": "kv_both"}
    return json.dumps(config, separators=(",", ":"), sort_keys=True)


def kv_tier_path(tier: int) -> str:
    """Return the directory of a tier of key-value blocks, counted from 0."""
    return f"/mnt/kv-cache-{tier}"


def kv_transfer_flag(workload: Any) -> str:
    """Return vLLM's flag with that value, quoted for KServe's start scripts; empty without offloading.

    The scripts put it between double quotes, and a shell evaluates the result once more.
    """
    config = kv_transfer_config(workload)
    escaped = config.replace('"', '\\"')
    return f"--kv-transfer-config '{escaped}'" if config else ""


def shutdown_timeout_s(workload: Any, delay_s: Any) -> int:
    """Return how many seconds the engine may take to stop: the pod's grace period without the hook and a reserve.

    Takes the workload, a pod spec, the grace period in seconds, or nil; then the seconds of the hook.
    """
    if isinstance(delay_s, bool) or not isinstance(delay_s, int):
        raise ValueError
    value = unwrap(workload)
    if isinstance(value, dict):
        pod = value.get("template") or value
        value = pod.get("terminationGracePeriodSeconds") if isinstance(pod, dict) else None
    grace_s = value if isinstance(value, int) and not isinstance(value, bool) else GRACE_S
    return max(0, grace_s - delay_s - min(_RESERVE_S, grace_s))


def shell_quote(value: Any) -> str:
    """Quote a text as one word of a shell, in a pod's command.

    Kubernetes replaces `$(NAME)` in commands before a shell reads them, so a dollar is always followed by an empty pair
    of quotes.
    """
    return "'" + text_of(value).replace("'", "'\\''").replace("$", "$''") + "'"


_PLAIN = (str, int, float)


def _equal(first: Any, *others: Any) -> bool:
    if not others or not all(value is None or isinstance(value, _PLAIN) for value in (first, *others)):
        raise ValueError
    return any(first == other for other in others)


def _ordered(first: Any, second: Any) -> int:
    numbers = all(isinstance(value, int | float) for value in (first, second))
    if not numbers and not all(isinstance(value, str) for value in (first, second)):
        raise ValueError
    return int(first > second) - int(first < second)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, list):
            if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < len(value):
                raise TemplateError(f"`index` finds no member {text_of(key)[:64]} in a list of {len(value)}")
            value = value[key]
        elif isinstance(value, Struct):
            value = field_of(value, text_of(key), "index")
        elif isinstance(value, Mapping):
            # As in Go, a missing key of a map of texts is an empty text.
            value = wrap(value.get(key, ""), ANY)
        else:
            raise ValueError
    return value


def _default(fallback: Any, value: Any = None) -> Any:
    return value if truth(value) else fallback


def _length(value: Any) -> int:
    return len(value.value if isinstance(value, Struct) else value)


def _to_json(value: Any) -> str:
    return json.dumps(unwrap(value), separators=(",", ":"), sort_keys=True)


def _child_name(parent: Any, suffix: Any) -> str:
    if not isinstance(parent, str) or not isinstance(suffix, str):
        raise ValueError
    return child_name(parent, suffix)


_VERB = re.compile(r"%(.)", re.DOTALL)


def _printf(form: Any, *values: Any) -> str:
    left = list(values)

    def written(match: re.Match[str]) -> str:
        verb = match[1]
        if verb == "%":
            return "%"
        value = left.pop(0)
        if verb == "q":
            return json.dumps(text_of(value))
        if verb in "sv" or (verb == "d" and isinstance(value, int)):
            return text_of(value)
        raise TemplateError(f"`printf` supports %s, %d, %v, %q and %%, not `%{verb}`")

    text = _VERB.sub(written, form)
    if left:
        raise ValueError
    return text


_FUNCTIONS: Functions = {
    "ChildName": _child_name,
    "default": _default,
    "eq": _equal,
    "ge": lambda first, second: _ordered(first, second) >= 0,
    "gt": lambda first, second: _ordered(first, second) > 0,
    "index": _index,
    "le": lambda first, second: _ordered(first, second) <= 0,
    "len": _length,
    "lt": lambda first, second: _ordered(first, second) < 0,
    "ne": lambda first, second: not _equal(first, second),
    "not": lambda value: not truth(value),
    "print": lambda *values: "".join(map(text_of, values)),
    "printf": _printf,
    "shellQuote": shell_quote,
    "toJson": _to_json,
}
