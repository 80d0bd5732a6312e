"""The configuration of the endpoint picker: which pods may receive a request, and how each is scored. Pure.

The user's configuration has precedence. The text is formatted as KServe formats it, so that the endpoint picker of an
adopted service does not restart.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml

from kubeapi.json_types import Json
from kubeapi.yaml_text import load
from program.desired.errors import SpecInvalid
from program.dialects.kserve.router.picker_migration import Version, deprecated, migrated

FIELD = "spec.router.scheduler.config"
DEFAULT_SINCE: Version = (0, 9)
"""The first version that supports all plugins of `default_config`."""
METRICS = "metrics-data-source"
_LORA = "lora-affinity-scorer"
_API = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
_PICKER = "max-score-picker"
_DECIDER = "always-disagg-pd-decider"
_LONGEST = 100_000

_Profile = tuple[tuple[str, int | None], ...]
_DEFAULT: _Profile = (
    ("queue-scorer", 2),
    ("kv-cache-utilization-scorer", 2),
    ("prefix-cache-scorer", 3),
    ("no-hit-lru-scorer", 2),
    (_PICKER, None),
)
_PREFILL: _Profile = (
    ("prefill-filter", None),
    ("prefix-cache-scorer", 3),
    ("queue-scorer", 2),
    ("kv-cache-utilization-scorer", 2),
    (_PICKER, None),
)
_DECODE: _Profile = (
    ("decode-filter", None),
    ("active-request-scorer", 2),
    ("prefix-cache-scorer", 3),
    (_PICKER, None),
)
_DISAGGREGATED = (
    "disagg-headers-handler",
    "prefill-filter",
    "decode-filter",
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "active-request-scorer",
    "prefix-cache-scorer",
    _PICKER,
    _DECIDER,
)


@functools.lru_cache(maxsize=16)
def default_config(*, prefill: bool, adapters: bool, tls: bool) -> str:
    """Return the configuration of a service that sets none."""
    if prefill:
        plugins: list[Json] = [{"type": name} for name in _DISAGGREGATED]
        plugins.append({"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": _DECIDER}}})
        profiles = {"prefill": _PREFILL, "decode": _DECODE}
    else:
        plugins = [{"type": "single-profile-handler"}, *({"type": name} for name, _ in _DEFAULT)]
        profiles = {"default": _DEFAULT}
    if adapters:
        plugins.append({"type": _LORA})
        profiles = {name: _with_adapters(profile) for name, profile in profiles.items()}
    config = {
        **_API,
        "plugins": plugins,
        "schedulingProfiles": [
            {"name": name, "plugins": [_reference(plugin, weight) for plugin, weight in profile]}
            for name, profile in profiles.items()
        ],
    }
    return _written(_over_tls(config) if tls else config)


def given_config(
    inline: Any, *, tls: bool, version: Version | None = None, tokenizer: str = "", counted: bool = False
) -> str:
    """Return the user's configuration, an object or a YAML text, rewritten for the picker's version.

    With TLS, the picker reads the pods' metrics over https, unless the configuration sets their source. Raises
    SpecInvalid for an invalid text.
    """
    return _given(inline if isinstance(inline, str) else json.dumps(inline), tls, version, tokenizer, counted)


@functools.lru_cache(maxsize=256)
def _given(text: str, tls: bool, version: Version | None, tokenizer: str, counted: bool) -> str:
    config = migrated(_read(text), version, tokenizer=tokenizer, counted=counted)
    return _written(_over_tls(config) if tls else config)


@functools.lru_cache(maxsize=256)
def flagged_config(text: str, version: Version | None, tokenizer: str = "", counted: bool = False) -> str:
    """Return the configuration of a flag, rewritten for the picker's version; unchanged if nothing needs rewriting.

    An invalid text is returned unchanged, and the picker refuses it.
    """
    try:
        config = _read(text)
    except SpecInvalid:
        return text
    told = migrated(config, version, tokenizer=tokenizer, counted=counted)
    return text if told is config else _written(told)


def deprecations(inline: Any, version: Version | None) -> list[str]:
    """List the plugins that the picker's version no longer has. Raises SpecInvalid as `given_config` does."""
    return deprecated(_read(inline) if isinstance(inline, str) else inline, version)


@functools.lru_cache(maxsize=256)
def _read(text: str) -> Json:
    """Read a configuration. Do not change the result: it is cached for all passes."""
    if len(text) > _LONGEST:
        raise SpecInvalid(field=FIELD, why=f"is longer than {_LONGEST} characters")
    try:
        config = json.loads(text) if text.lstrip().startswith("{") else load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise SpecInvalid(field=FIELD, why=f"is not YAML: {str(error)[:200]}") from None
    if not isinstance(config, dict):
        raise SpecInvalid(field=FIELD, why="is not an object with plugins and schedulingProfiles")
    return config


def _with_adapters(profile: _Profile) -> _Profile:
    """Score first by which pod has the adapter. Filters have no weight and stay in front."""
    filters = tuple(entry for entry in profile if entry[1] is None and entry[0] != _PICKER)
    return (*filters, (_LORA, 4), *(entry for entry in profile if entry not in filters))


def _reference(plugin: str, weight: int | None) -> Json:
    return {"pluginRef": plugin} if weight is None else {"pluginRef": plugin, "weight": weight}


def _over_tls(config: Json) -> Json:
    plugins = config.get("plugins")
    known = plugins if isinstance(plugins, list) else []
    if any(isinstance(plugin, dict) and plugin.get("type") == METRICS for plugin in known):
        return config
    return {**config, "plugins": [*known, {"type": METRICS, "parameters": {"scheme": "https"}}]}


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _written(config: Json) -> str:
    text: str = yaml.dump(config, Dumper=_Dumper, sort_keys=True, default_flow_style=False)
    return text
