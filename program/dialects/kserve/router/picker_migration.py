"""Rewrites endpoint pickers' configurations of older versions for the version that runs. Pure.

A picker does not start if its configuration contains an unknown word. KServe rewrites older configurations on every
pass, so its services still contain such words. Only renamed and split plugins are changed; the rest is kept unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json
from program.runtimes.flags import without_flags

VERSION = "app.kubernetes.io/version"
"""Annotation of the picker's pod: the version of its configuration, if the image's tag has none."""
DEPRECATED = {
    "precise-prefix-cache-scorer": (
        (0, 9),
        "was split into three plugins in version 0.9: token-producer, precise-prefix-cache-producer and "
        "prefix-cache-scorer",
    ),
}
"""Plugins that cannot be rewritten from the configuration alone: the version that removed them, and their
replacement.
"""

Version = tuple[int, int]
"""Major and minor version."""
_TAG = re.compile(r"[^:]+(?::\d+/[^:]+)?:v?(\d+)\.(\d+)(?:[.-].*)?", re.ASCII)
_WRITTEN = re.compile(r"v?(\d+)\.(\d+)(?:[.-].*)?", re.ASCII)
_RENAMED_SINCE: Version = (0, 7)
_RENAMED = {"prefill-header-handler": "disagg-headers-handler", "pd-profile-handler": "disagg-profile-handler"}
_NO_SCHEME_SINCE: Version = (0, 9)
_PRODUCERS_SINCE: Version = (0, 9)
"""The version from which a separate plugin finds prefixes, and configurations use llm-d's own API group."""
_OLD_API, _API = "inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1"
_CHARACTERS_PER_TOKEN = 4
"""Older thresholds count characters. A token of English text has this many."""
_SCHEME = "--model-server-metrics-scheme"
_PROFILES = "disagg-profile-handler"
_ALWAYS, _BY_PREFIX = "always-disagg-pd-decider", "prefix-based-pd-decider"
_GONE = ("deciderPluginName", "threshold", "hashBlockSize")
"""Parameters of the profile handler before it had deciders of several kinds."""


def picker_version(image: str, annotations: Mapping[str, str]) -> Version | None:
    """Return the picker's version; None if neither image nor annotation contains it."""
    found = _TAG.fullmatch(image.partition("@")[0]) or _WRITTEN.fullmatch(str(annotations.get(VERSION) or ""))
    return (int(found[1]), int(found[2])) if found is not None else None


def migrated(config: Json, version: Version | None, *, tokenizer: str = "", counted: bool = False) -> Json:
    """Return the configuration rewritten for a version; the same object if there is nothing to rewrite.

    `tokenizer` is the URL of the service's tokenizer, if it has one. `counted` returns the version that hashes are
    computed from: with the words that newer pickers ignore, as development versions kept them (docs/adr/0042).
    """
    told = _renamed(config, version)
    if version is None or version < _PRODUCERS_SINCE or not isinstance(told.get("plugins"), list):
        return told
    if tokenizer:
        told = split_prefix_scorer(told, tokenizer)
    if not counted:
        told = {**told, "plugins": [_without_gone(each) for each in told["plugins"]]}
        if told.get("apiVersion") == _OLD_API:
            told = {**told, "apiVersion": _API}
    return config if told == config else told


def _without_gone(plugin: Any) -> Any:
    """Remove parameters that plugins no longer have: the producers now split prefixes."""
    given = _object(plugin).get("parameters")
    if not isinstance(given, dict):
        return plugin
    is_scorer = plugin.get("type") == "prefix-cache-scorer"
    rest = {
        key: value
        for key, value in given.items()
        if key != "hashBlockSize" and (not is_scorer or key == "prefixMatchInfoProducerName")
    }
    if rest == given:
        return plugin
    without = {key: value for key, value in plugin.items() if key != "parameters"}
    return {**without, "parameters": rest} if rest else without


def _renamed(config: Json, version: Version | None) -> Json:
    plugins = config.get("plugins")
    if version is None or version < _RENAMED_SINCE or not isinstance(plugins, list):
        return config
    told = [_plugin(each) for each in plugins]
    # A plugin must be declared before the plugin that names it.
    told = [found for each in told for found in (*_decider(each, told), _without_old_parameters(each))]
    profiles = config.get("schedulingProfiles")
    # References use a plugin's name, or its type if it has no name.
    own = {_object(each).get("name") for each in plugins}
    renamed = {old: new for old, new in _RENAMED.items() if old not in own}
    named = [_profile(each, renamed) for each in profiles] if isinstance(profiles, list) else profiles
    if told == plugins and named == profiles:
        return config
    return {**config, "plugins": told, **({"schedulingProfiles": named} if named is not None else {})}


def without_old_flags(words: list[str], version: Version | None) -> list[str]:
    """Remove the flag for the scheme of metrics. Newer pickers refuse it: it is a plugin's parameter."""
    if version is None or version < _NO_SCHEME_SINCE:
        return words
    return without_flags(words, _SCHEME)


def deprecated(config: Json, version: Version | None) -> list[str]:
    """List the plugins of a configuration that the version does not have, each with its replacement."""
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


def _decider(plugin: Any, plugins: list[Any]) -> tuple[Json, ...]:
    """Return the built-in decider of an old profile handler; none if it names one, or if the decider is declared
    already.
    """
    given = _object(_object(plugin).get("parameters"))
    if not _is_of_old(plugin) or given.get("deciderPluginName"):
        return ()
    name = _decider_name(given)
    if name in {each.get("name") or each.get("type") for each in map(_object, plugins)}:
        return ()
    decider: Json = {"type": name}
    if name == _BY_PREFIX:
        decider["parameters"] = {"nonCachedTokens": _tokens(given["threshold"])}
    return (decider,)


def _tokens(characters: Any) -> Any:
    """Convert a threshold to tokens. A value that is not a number is kept, and the picker refuses it."""
    if isinstance(characters, bool) or not isinstance(characters, (int, float)):
        return characters
    return max(1, math.ceil(characters / _CHARACTERS_PER_TOKEN))


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


OLD = "precise-prefix-cache-scorer"
_TOKENS, _INDEX, _SCORER = "token-producer", "precise-prefix-cache-producer", "prefix-cache-scorer"
_MODEL = "/mnt/models/base"
"""The model's path in the presets' tokenizer."""


def split_prefix_scorer(config: Json, tokenizer: str) -> Json:
    """Replace the old plugin by its three successors, with the service's tokenizer at this URL."""
    plugins: list[Any] = config["plugins"]
    at = next((at for at, each in enumerate(plugins) if _type(each) == OLD), None)
    if at is None:
        return {**config, "plugins": [_asking(each, tokenizer) for each in plugins]}
    old = plugins[at]
    index: Json = {"type": _INDEX}
    if parameters := _of_index(_object(old.get("parameters"))):
        index["parameters"] = parameters
    scorer: Json = {"type": _SCORER, "parameters": {"prefixMatchInfoProducerName": _INDEX}}
    own = next((each for each in plugins if _type(each) == _TOKENS), {"type": _TOKENS})
    three = [_asking(own, tokenizer), index, scorer]
    # One scorer and one token producer are sufficient.
    first = [each for each in plugins[:at] if _type(each) not in (_SCORER, _TOKENS)]
    rest = [each for each in plugins[at + 1 :] if _type(each) not in (_SCORER, _TOKENS)]
    names = {OLD, str(old.get("name") or OLD)}
    names |= {str(each.get("name")) for each in plugins if _type(each) == _SCORER and each.get("name")}
    profiles = config.get("schedulingProfiles")
    told = [_scored_profile(each, names) for each in profiles] if isinstance(profiles, list) else profiles
    return {
        **config,
        "plugins": [*first, *three, *rest],
        **({"schedulingProfiles": told} if told is not None else {}),
    }


def _of_index(given: Mapping[str, Any]) -> Json:
    """Return the old plugin's parameters without those of its built-in tokenizer."""
    found = dict(given)
    if isinstance(indexer := given.get("indexerConfig"), dict):
        rest = {key: value for key, value in indexer.items() if key != "tokenizersPoolConfig"}
        found = {key: value for key, value in found.items() if key != "indexerConfig"}
        if rest:
            found["indexerConfig"] = rest
    return found


def _asking(plugin: Any, tokenizer: str) -> Any:
    """Return a plugin with the tokenizer's address, unless the plugin sets one."""
    if _type(plugin) != _TOKENS:
        return plugin
    given = _object(plugin.get("parameters"))
    vllm = {"url": tokenizer, **_object(given.get("vllm"))}
    return {**plugin, "parameters": {"modelName": _MODEL, **given, "vllm": vllm}}


def _scored_profile(profile: Any, names: set[str]) -> Any:
    """Replace references to the old plugin by one reference to the scorer."""
    listed = _object(profile).get("plugins")
    if not isinstance(listed, list):
        return profile
    found: list[Any] = []
    for each in listed:
        is_scorer = _object(each).get("pluginRef") in {*names, _SCORER}
        told = {**each, "pluginRef": _SCORER} if is_scorer else each
        if not (is_scorer and any(_object(other).get("pluginRef") == _SCORER for other in found)):
            found.append(told)
    return {**profile, "plugins": found}


def _type(plugin: Any) -> Any:
    return _object(plugin).get("type")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
