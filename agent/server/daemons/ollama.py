"""Client of Ollama's API (its docs/api.md): version, pull, generate, ps, show. Called by `shared`."""

from __future__ import annotations

import threading
from typing import Any

from agent.server.daemons.http import DaemonConnection, DaemonResponse
from agent.server.daemons.port import DaemonFailed, Progress
from agent.sources.errors import Cancelled

PULL_STALL_S = 120.0
"""Longest silence of a pull. Ollama reports about once a second, except while it verifies a large layer."""
UNLOAD_TIMEOUT_S = 30.0
FOREVER = -1
"""`keep_alive`: the model stays loaded until it is unloaded or displaced."""


class Ollama:
    """One Ollama server. Thread-safe."""

    def __init__(self, address: str, port: int) -> None:
        self._connection = DaemonConnection(address, port)

    def answers(self) -> str | None:
        """GET /api/version, because Ollama has no /health."""
        try:
            answer = self._connection.ask("GET", "/api/version")
        except DaemonFailed as failure:
            return str(failure)
        if answer.status == 200 and isinstance(answer.value, dict) and "version" in answer.value:
            return None
        return f"the server at port {self._connection.port} is not Ollama: GET /api/version: {answer.error_text()}"

    def has(self, model: str) -> bool:
        answer = self._connection.ask("POST", "/api/show", {"model": model})
        if answer.status == 404:
            return False
        return _good(answer, f"POST /api/show of `{model}`").status == 200

    def pull(self, model: str, on_progress: Progress, cancel: threading.Event) -> None:
        if self.has(model):
            return
        layers: dict[str, tuple[int, int]] = {}
        succeeded = False
        stopper = _on_set(cancel, self._connection.interrupt)
        try:
            for line in self._connection.lines("/api/pull", {"model": model, "stream": True}, stall_s=PULL_STALL_S):
                value: Any = line.value
                if line.status != 200 or not isinstance(value, dict) or value.get("error"):
                    raise DaemonFailed(f"Ollama could not pull `{model}`: {_words(line)}")
                if value.get("digest") and isinstance(value.get("total"), int):
                    layers[str(value["digest"])] = (int(value.get("completed") or 0), int(value["total"]))
                    on_progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))
                succeeded = value.get("status") == "success"
                if cancel.is_set():
                    raise Cancelled(f"stopped pulling `{model}`")
        except DaemonFailed:
            if cancel.is_set():
                raise Cancelled(f"stopped pulling `{model}`") from None
            raise
        finally:
            stopper.set()
        if not succeeded:
            raise DaemonFailed(f"Ollama stopped pulling `{model}` before the end")

    def load(self, model: str, *, timeout_s: float) -> None:
        """POST /api/generate without a prompt, which only loads the model."""
        body = {"model": model, "keep_alive": FOREVER, "stream": False}
        answer = self._connection.ask("POST", "/api/generate", body, timeout_s=timeout_s)
        if answer.status == 400 and "does not support generate" in answer.text:
            # The model supports only embeddings.
            embed = {"model": model, "input": "Hi", "keep_alive": FOREVER}
            answer = self._connection.ask("POST", "/api/embed", embed, timeout_s=timeout_s)
        _good(answer, f"Ollama could not load `{model}`")

    def loaded(self) -> frozenset[str]:
        answer = _good(self._connection.ask("GET", "/api/ps"), "GET /api/ps")
        models = answer.value.get("models") if isinstance(answer.value, dict) else None
        named = [each.get(part) for each in models or () if isinstance(each, dict) for part in ("name", "model")]
        return frozenset(canonical(name) for name in named if name)

    def unload(self, model: str) -> None:
        """Ollama waits for running requests before it unloads."""
        body = {"model": model, "keep_alive": 0, "stream": False}
        answer = self._connection.ask("POST", "/api/generate", body, timeout_s=UNLOAD_TIMEOUT_S)
        if answer.status == 400 and "does not support generate" in answer.text:
            embed = {"model": model, "input": "", "keep_alive": 0}
            answer = self._connection.ask("POST", "/api/embed", embed, timeout_s=UNLOAD_TIMEOUT_S)
        if answer.status != 404:
            _good(answer, f"Ollama could not unload `{model}`")

    def size_of(self, model: str) -> int | None:
        answer = _good(self._connection.ask("GET", "/api/tags"), "GET /api/tags")
        models = answer.value.get("models") if isinstance(answer.value, dict) else None
        for each in models or ():
            if isinstance(each, dict) and canonical(str(each.get("name"))) == canonical(model):
                return int(each["size"]) if isinstance(each.get("size"), int) else None
        return None

    def interrupt(self) -> None:
        self._connection.interrupt()


def canonical(model: str) -> str:
    """Return a model's name with its tag, as Ollama lists it."""
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


def _good(answer: DaemonResponse, what: str) -> DaemonResponse:
    if not 200 <= answer.status < 300:
        raise DaemonFailed(f"{what}: {answer.error_text()}")
    return answer


def _words(line: DaemonResponse) -> str:
    said = line.value.get("error") if isinstance(line.value, dict) else None
    return str(said) if said else line.error_text()


def _on_set(event: threading.Event, act: Any) -> threading.Event:
    """Call `act` once `event` is set, unless the returned event is set first."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            if event.is_set():
                act()
                return

    threading.Thread(target=watch, name="pull-cancel", daemon=True).start()
    return over
