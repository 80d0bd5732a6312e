"""Client of oMLX's API, an OpenAI server with additions for the state, loading and unloading of models.

Called by `shared`. oMLX serves each subdirectory of its model directory under the directory's name.
"""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote

from agent.server.daemons.http import DaemonConnection
from agent.server.daemons.port import DaemonFailed, Progress

UNLOAD_TIMEOUT_S = 60.0


class Omlx:
    """One oMLX server. Thread-safe."""

    def __init__(self, address: str, port: int) -> None:
        self._connection = DaemonConnection(address, port)

    def answers(self) -> str | None:
        try:
            answer = self._connection.ask("GET", "/v1/models/status")
        except DaemonFailed as failure:
            return str(failure)
        return None if answer.status == 200 else f"GET /v1/models/status: {answer.error_text()}"

    def has(self, model: str) -> bool:
        return any(each.get("id") == model for each in self._status())

    def pull(self, model: str, on_progress: Progress, cancel: threading.Event) -> None:
        """Do nothing, because the model's directory is the plan's file."""

    def load(self, model: str, *, timeout_s: float) -> None:
        """POST …/load.

        Releases without this path load a model at its first request, so they get a completion request.
        """
        answer = self._connection.ask("POST", f"/v1/models/{quote(model, safe='')}/load", {}, timeout_s=timeout_s)
        if answer.status in (404, 405) and self.has(model):
            warm_up = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            answer = self._connection.ask("POST", "/v1/chat/completions", warm_up, timeout_s=timeout_s)
        if not 200 <= answer.status < 300:
            raise DaemonFailed(f"oMLX could not load `{model}`: {answer.error_text()}")

    def loaded(self) -> frozenset[str]:
        return frozenset(str(each["id"]) for each in self._status() if each.get("loaded") is True and "id" in each)

    def unload(self, model: str) -> None:
        path = f"/v1/models/{quote(model, safe='')}/unload"
        answer = self._connection.ask("POST", path, {}, timeout_s=UNLOAD_TIMEOUT_S)
        # 400: the model was not loaded. 404: the model does not exist.
        if answer.status not in (400, 404) and not 200 <= answer.status < 300:
            raise DaemonFailed(f"oMLX could not unload `{model}`: {answer.error_text()}")

    def size_of(self, model: str) -> int | None:  # noqa: ARG002 - the model's directory has the size
        return None

    def interrupt(self) -> None:
        self._connection.interrupt()

    def _status(self) -> list[dict[str, Any]]:
        answer = self._connection.ask("GET", "/v1/models/status")
        models = answer.value.get("models") if isinstance(answer.value, dict) else None
        if answer.status != 200 or not isinstance(models, list):
            raise DaemonFailed(f"GET /v1/models/status: {answer.error_text()}")
        return [each for each in models if isinstance(each, dict)]
