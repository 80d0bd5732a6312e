"""What endpoint pickers were told in the words of older versions, in those of the version that runs. Pure.

Pickers read their configuration strictly: one word that was renamed, and they do not start. KServe rewrites what users
wrote for older ones on every pass, so that its services still hold such words. Only what is known to be renamed is
touched; a configuration in today's words stays as it is, key by key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from program.desired.base import JsonObject

VERSION = "app.kubernetes.io/version"
"""Annotation of the picker's pod: the version of its configuration, where the image's tag tells none."""
DEPRECATED = {
    "precise-prefix-cache-scorer": (
        (0, 9),
        "is three plugins since version 0.9: token-producer, precise-prefix-cache-producer and prefix-cache-scorer",
    ),
}
"""Plugins that cannot be rewritten without knowing more than the configuration says: since when, and what to do."""

Version = tuple[int, int]
"""Major and minor."""
_TAG = re.compile(r"[^:]+(?::\d+/[^:]+)?:v?(\d+)\.(\d+)(?:[.-].*)?", re.ASCII)
_WRITTEN = re.compile(r"v?(\d+)\.(\d+)(?:[.-].*)?", re.ASCII)
_RENAMED_SINCE: Version = (0, 7)
_RENAMED = {"prefill-header-handler": "disagg-headers-handler", "pd-profile-handler": "disagg-profile-handler"}
_NO_SCHEME_SINCE: Version = (0, 9)
_SCHEME = "--model-server-metrics-scheme"
_PROFILES = "disagg-profile-handler"
_ALWAYS, _BY_PREFIX = "always-disagg-pd-decider", "prefix-based-pd-decider"
_GONE = ("deciderPluginName", "threshold", "hashBlockSize")
"""Parameters of the profile handler before it had deciders of several kinds."""


def picker_version(image: str, annotations: Mapping[str, str]) -> Version | None:
    """Tell which version of the picker runs; None where neither image nor annotation says it."""
    found = _TAG.fullmatch(image.partition("@")[0]) or _WRITTEN.fullmatch(str(annotations.get(VERSION) or ""))
    return (int(found[1]), int(found[2])) if found is not None else None


def migrated(config: JsonObject, version: Version | None) -> JsonObject:
    """Give the configuration in the words of a version; the very same where there is nothing to rewrite."""
    plugins = config.get("plugins")
    if version is None or version < _RENAMED_SINCE or not isinstance(plugins, list):
        return config
    told = [_plugin(each) for each in plugins]
    deciders = [decider for each in told if (decider := _decider(each, told)) is not None]
    told = [_without_old_parameters(each) for each in told]
    profiles = config.get("schedulingProfiles")
    # A plugin is referred to by its name, and by its type where it has none.
    own = {_object(each).get("name") for each in plugins}
    renamed = {old: new for old, new in _RENAMED.items() if old not in own}
    named = [_profile(each, renamed) for each in profiles] if isinstance(profiles, list) else profiles
    if told == plugins and named == profiles:
        return config
    return {**config, "plugins": [*told, *deciders], **({"schedulingProfiles": named} if named is not None else {})}


def without_old_flags(words: list[str], version: Version | None) -> list[str]:
    """Take out the flag that tells how metrics are read, which is a plugin's parameter now: newer pickers refuse it."""
    if version is None or version < _NO_SCHEME_SINCE:
        return words
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != _SCHEME and not word.startswith(f"{_SCHEME}="):
            kept.append(word)
        skip = not skip and word == _SCHEME
    return kept


def deprecated(config: JsonObject, version: Version | None) -> list[str]:
    """Name the plugins of a configuration that the version does without, each with what to write instead."""
    plugins = config.get("plugins")
    types = [str(_object(each).get("type")) for each in plugins] if isinstance(plugins, list) else []
    if version is None:
        return []
    return [f"{name} {why}" for name, (since, why) in DEPRECATED.items() if name in types and version >= since]


def _plugin(plugin: Any) -> Any:
    kind = _object(plugin).get("type")
    if not isinstance(kind, str):
        return plugin
    named = {**plugin, "type": _RENAMED.get(kind, kind)}
    given = _object(plugin.get("parameters"))
    if kind == "prefix-cache-scorer" and "blockSize" in given:
        rest = {key: value for key, value in given.items() if key != "blockSize"}
        named["parameters"] = {"blockSizeTokens": given["blockSize"], **rest}
    indexer = _object(given.get("indexerConfig"))
    if "tokenProcessorConfig" in indexer:
        rest = {key: value for key, value in indexer.items() if key != "tokenProcessorConfig"}
        processor = given.get("tokenProcessorConfig") or indexer["tokenProcessorConfig"]
        named["parameters"] = {**given, "indexerConfig": rest, "tokenProcessorConfig": processor}
    return named


def _decider(plugin: Any, plugins: list[Any]) -> JsonObject | None:
    """Give the decider that a profile handler of the old kind had built in; None where it named one, or has one."""
    given = _object(_object(plugin).get("parameters"))
    if not _is_of_old(plugin) or given.get("deciderPluginName"):
        return None
    name = _decider_name(given)
    if name in {each.get("name") or each.get("type") for each in map(_object, plugins)}:
        return None
    decider: JsonObject = {"type": name}
    return {**decider, "parameters": {"nonCachedTokens": given["threshold"]}} if name == _BY_PREFIX else decider


def _without_old_parameters(plugin: Any) -> Any:
    if not _is_of_old(plugin):
        return plugin
    given = plugin["parameters"]
    rest = {key: value for key, value in given.items() if key not in _GONE}
    return {**plugin, "parameters": {"deciders": {"prefill": _decider_name(given)}, **rest}}


def _is_of_old(plugin: Any) -> bool:
    given = _object(_object(plugin).get("parameters"))
    return bool(_object(plugin).get("type") == _PROFILES and any(name in given for name in _GONE))


def _decider_name(given: Mapping[str, Any]) -> str:
    written = given.get("deciderPluginName")
    if isinstance(written, str) and written:
        return written
    return _BY_PREFIX if given.get("threshold") else _ALWAYS


def _profile(profile: Any, renamed: Mapping[str, str]) -> Any:
    plugins = _object(profile).get("plugins")
    if not isinstance(plugins, list):
        return profile
    return {**profile, "plugins": [_reference(each, renamed) for each in plugins]}


def _reference(reference: Any, renamed: Mapping[str, str]) -> Any:
    name = _object(reference).get("pluginRef")
    return {**reference, "pluginRef": renamed[name]} if isinstance(name, str) and name in renamed else reference


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
