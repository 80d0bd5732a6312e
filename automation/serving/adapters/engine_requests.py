"""Asks one replica to load or unload an adapter, in the way of its engine. Called in the threads of `controller`.

vLLM and SGLang load adapters while they run. They are asked first what they have, so that a loop that was restarted
repeats nothing. llama-server loads the adapters of its arguments only (`--lora`); it is asked for the number of the
adapter, and to apply it to no request that does not name it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kubeapi.exchange import Exchange
from kubeapi.json_types import Json
from program.desired.adapter import AdapterOutcome, AdapterReason

LIST_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 120.0
"""For a load. vLLM may download the adapter before it answers."""
KEPT_UNTIL_RESTART = frozenset({"llamacpp"})
"""The engines that cannot unload an adapter. They apply it to no request that does not name it."""
_LONGEST_MESSAGE = 300
_ABSENT = AdapterOutcome(state="absent", reason=AdapterReason.UNLOADING)
_LOADED = AdapterOutcome(state="loaded")


class RequestFailed(Exception):
    """A replica gave no answer of its engine."""

    def __init__(self, reason: AdapterReason, message: str) -> None:
        super().__init__(message)
        self.outcome = AdapterOutcome(state="failed", reason=reason, message=message[:_LONGEST_MESSAGE])


class Ask(Protocol):
    """Sends one request to a replica and returns the engine's answer, whatever its status. Raises RequestFailed."""

    def __call__(self, method: str, path: str, body: Any, timeout_s: float) -> Exchange: ...


@dataclass(frozen=True)
class _Paths:
    load: str
    unload: str
    remedy: str
    """How the engine is allowed to load adapters while it runs."""


_PATHS: Mapping[str, _Paths] = {
    "vllm": _Paths(
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "start vLLM with --enable-lora in spec.extraArgs, and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in spec.env",
    ),
    "sglang": _Paths("/load_lora_adapter", "/unload_lora_adapter", "start SGLang with --enable-lora in spec.extraArgs"),
}


def load(engine: str, name: str, path: str, ask: Ask) -> AdapterOutcome:
    """Make sure that a replica has the adapter `name` from `path`. `engine` is one of `ENGINES`."""
    try:
        if engine == "llamacpp":
            return _find(path, ask)
        return _load(_PATHS[engine], name, path, ask)
    except RequestFailed as error:
        return error.outcome


def unload(engine: str, name: str, ask: Ask) -> AdapterOutcome:
    """Make sure that a replica has no adapter `name`. `engine` is one that can unload adapters."""
    try:
        return _unload(_PATHS[engine], name, ask)
    except RequestFailed as error:
        return error.outcome


# --- vLLM and SGLang --------------------------------------------------------------------------------------------------


def _load(paths: _Paths, name: str, path: str, ask: Ask) -> AdapterOutcome:
    entry = _entry(name, ask)
    if entry is not None:
        if not entry.get("parent"):
            message = f"the engine serves its own model under the name `{name}`; give the adapter another name"
            return _failed(AdapterReason.NAME_TAKEN, message)
        if entry.get("root") in (None, path):
            return _LOADED
        # Another path of an earlier spec, or an adapter of the engine's arguments.
        removed = _unload(paths, name, ask)
        if removed.state != "absent":
            return removed
    answer = ask("POST", paths.load, {"lora_name": name, "lora_path": path}, CHANGE_TIMEOUT_S)
    if answer.status == 200 and _succeeded(answer.body):
        return _LOADED
    text = _message(answer.body)
    if answer.status == 400 and "already" in text and "loaded" in text:
        return _LOADED
    if _is_unknown_path(answer):
        return _failed(
            AdapterReason.RUNTIME_LOADING_DISABLED,
            f"the engine does not load adapters while it runs (POST {paths.load}: {answer.status}); {paths.remedy}",
        )
    return _refusal("POST", paths.load, answer)


def _unload(paths: _Paths, name: str, ask: Ask) -> AdapterOutcome:
    answer = ask("POST", paths.unload, {"lora_name": name}, CHANGE_TIMEOUT_S)
    if answer.status == 200 and _succeeded(answer.body):
        return _ABSENT
    # An adapter that is not loaded is refused with 400 or 404, by release. The list shows whether it is the reason.
    if 400 <= answer.status < 500 and _entry(name, ask) is None:
        return _ABSENT
    return _refusal("POST", paths.unload, answer)


def _entry(name: str, ask: Ask) -> Json | None:
    """Return the entry of `GET /v1/models` with a name; None if the engine has none. Raises RequestFailed."""
    answer = ask("GET", "/v1/models", None, LIST_TIMEOUT_S)
    listed = _parsed(answer.body)
    data = listed.get("data") if isinstance(listed, dict) else None
    if answer.status != 200 or not isinstance(data, list):
        outcome = _refusal("GET", "/v1/models", answer)
        raise RequestFailed(outcome.reason, outcome.message)
    return next((each for each in data if isinstance(each, dict) and each.get("id") == name), None)


# --- llama-server -----------------------------------------------------------------------------------------------------


def _find(path: str, ask: Ask) -> AdapterOutcome:
    answer = ask("GET", "/lora-adapters", None, LIST_TIMEOUT_S)
    adapters = _parsed(answer.body)
    if answer.status != 200 or not isinstance(adapters, list) or not all(map(_is_llama_adapter, adapters)):
        return _refusal("GET", "/lora-adapters", answer)
    found = next((each for each in adapters if each.get("path") == path), None)
    if found is None:
        return _failed(
            AdapterReason.NOT_IN_ARGUMENTS,
            f"llama-server was started without {path}; it loads adapters only at its start. Add --lora {path} to the "
            "arguments of the service: in an InferenceService, spec.extraArgs",
        )
    if found.get("scale"):
        # Otherwise the adapter would also change the answers to requests for the model itself.
        scales = [{"id": each["id"], "scale": 0.0 if each is found else each.get("scale", 0.0)} for each in adapters]
        changed = ask("POST", "/lora-adapters", scales, LIST_TIMEOUT_S)
        if changed.status != 200:
            return _refusal("POST", "/lora-adapters", changed)
    return AdapterOutcome(state="loaded", adapter_id=found["id"])


def _is_llama_adapter(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), int)


# --- answers ----------------------------------------------------------------------------------------------------------


def _refusal(method: str, path: str, answer: Exchange) -> AdapterOutcome:
    if answer.status in (401, 403):
        return _failed(
            AdapterReason.ENGINE_KEY_REFUSED,
            f"{method} {path}: {answer.status}: the engine refuses the request without its API key, or refuses the key",
        )
    return _failed(AdapterReason.LOAD_UNSUCCESSFUL, f"{method} {path}: {answer.status}: {_message(answer.body)}")


def _failed(reason: AdapterReason, message: str) -> AdapterOutcome:
    return AdapterOutcome(state="failed", reason=reason, message=message[:_LONGEST_MESSAGE])


def _is_unknown_path(answer: Exchange) -> bool:
    """Return whether the engine has no such path. FastAPI answers so; an adapter that is not found is an `error`."""
    parsed = _parsed(answer.body)
    return answer.status == 405 or (answer.status == 404 and isinstance(parsed, dict) and "detail" in parsed)


def _succeeded(body: bytes) -> bool:
    """vLLM answers with a text, SGLang with JSON that has `success`."""
    parsed = _parsed(body)
    return not (isinstance(parsed, dict) and parsed.get("success") is False)


def _message(body: bytes) -> str:
    """Return the text of an error: of OpenAI's form, of the flat form of older releases, of SGLang, or the body."""
    parsed = _parsed(body)
    if isinstance(parsed, dict):
        error = parsed.get("error")
        inner = error.get("message") if isinstance(error, dict) else error
        for text in (inner, parsed.get("message"), parsed.get("error_message"), parsed.get("detail")):
            if isinstance(text, str) and text:
                return text[:_LONGEST_MESSAGE]
    return " ".join(body.decode("utf-8", "replace").split())[:_LONGEST_MESSAGE]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
