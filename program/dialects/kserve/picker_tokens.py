"""The plugins of an endpoint picker that see the tokens of a prompt, in the words of pickers since version 0.9. Pure.

`picker_migration` calls it. Older pickers had one plugin for it, with a tokenizer of its own. Now one plugin asks the
service's tokenizer, one follows which pod holds which tokens, and one scores by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json

OLD = "precise-prefix-cache-scorer"
_TOKENS, _INDEX, _SCORER = "token-producer", "precise-prefix-cache-producer", "prefix-cache-scorer"
_MODEL = "/mnt/models/base"
"""What the tokenizer of the presets calls its model."""


def told_apart(config: Json, tokenizer: str) -> Json:
    """Replace the one plugin by the three, and have tokens come from the service's tokenizer at this URL."""
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
    # One scorer is enough, and so is one source of tokens.
    first = [each for each in plugins[:at] if _type(each) not in (_SCORER, _TOKENS)]
    rest = [each for each in plugins[at + 1 :] if _type(each) not in (_SCORER, _TOKENS)]
    names = {OLD, str(old.get("name") or OLD)}
    names |= {str(each.get("name")) for each in plugins if _type(each) == _SCORER and each.get("name")}
    profiles = config.get("schedulingProfiles")
    told = [_profile(each, names) for each in profiles] if isinstance(profiles, list) else profiles
    return {
        **config,
        "plugins": [*first, *three, *rest],
        **({"schedulingProfiles": told} if told is not None else {}),
    }


def _of_index(given: Mapping[str, Any]) -> Json:
    """Give the old plugin's parameters without those of its own tokenizer."""
    found = dict(given)
    if isinstance(indexer := given.get("indexerConfig"), dict):
        rest = {key: value for key, value in indexer.items() if key != "tokenizersPoolConfig"}
        found = {key: value for key, value in found.items() if key != "indexerConfig"}
        if rest:
            found["indexerConfig"] = rest
    return found


def _asking(plugin: Any, tokenizer: str) -> Any:
    """Say where tokens come from, as far as the plugin does not say it itself."""
    if _type(plugin) != _TOKENS:
        return plugin
    given = _object(plugin.get("parameters"))
    vllm = {"url": tokenizer, **_object(given.get("vllm"))}
    return {**plugin, "parameters": {"modelName": _MODEL, **given, "vllm": vllm}}


def _profile(profile: Any, names: set[str]) -> Any:
    """Refer to the scorer where the old plugin was meant, once."""
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
