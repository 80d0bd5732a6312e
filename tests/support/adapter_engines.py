"""Real HTTP servers with the adapter endpoints of vLLM, SGLang and llama-server, and with their state.

The answers are those of the engines' sources: vLLM's `entrypoints/openai/models/serving.py`, SGLang's
`entrypoints/http_server.py`, llama.cpp's `tools/server`. The servers compute nothing: a completion has the name of
its model.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal

from tests.support.pod_proxy import Say

BASE = "org/base"


class AdapterEngine:
    """The state of one engine. `answer` has the form of an engine of `PodProxy`."""

    def __init__(
        self,
        kind: Literal["vllm", "sglang", "llamacpp"] = "vllm",
        *,
        loads_at_runtime: bool = True,
        files: tuple[str, ...] = (),
        scale: float = 1.0,
    ) -> None:
        """`files` are the paths that can be loaded; empty: all. llama-server has loaded all of them, with `scale`."""
        self.kind = kind
        self.loads_at_runtime = loads_at_runtime
        self.files = files
        self.adapters: dict[str, str] = {}
        """Name and path of each loaded adapter."""
        self.scales = dict.fromkeys(files, scale)
        self.asked: list[tuple[str, str]] = []
        """Method and path of each request."""
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any) -> Say:
        with self._lock:
            self.asked.append((method, path))
            if self.kind == "llamacpp":
                return self._llama(method, path, body)
            return self._openai(method, path, body)

    def changes(self) -> list[str]:
        """The paths of the requests that change something."""
        return [path.rpartition("/")[2] for method, path in self.asked if method == "POST"]

    def restart(self) -> None:
        """Lose the loaded adapters, as a new container does."""
        with self._lock:
            self.adapters.clear()

    def _openai(self, method: str, path: str, body: Any) -> Say:
        prefix = "/v1" if self.kind == "vllm" else ""
        if (method, path) == ("GET", "/v1/models"):
            cards = [{"id": BASE, "object": "model", "parent": None, "root": BASE}]
            cards += [{"id": n, "object": "model", "parent": BASE, "root": p} for n, p in self.adapters.items()]
            return Say(body={"object": "list", "data": cards})
        if self.loads_at_runtime and (method, path) == ("POST", f"{prefix}/load_lora_adapter"):
            return self._load(body["lora_name"], body["lora_path"])
        if self.loads_at_runtime and (method, path) == ("POST", f"{prefix}/unload_lora_adapter"):
            return self._unload(body["lora_name"])
        if (method, path) == ("POST", "/v1/chat/completions"):
            return self._complete(body.get("model", BASE))
        return Say(404, {"detail": "Not Found"})

    def _complete(self, model: str) -> Say:
        if model not in (BASE, *self.adapters):
            return self._refusal(404, "NotFoundError", f"The model `{model}` does not exist.")
        return Say(
            body={"model": model, "choices": [{"message": {"content": model}}], "usage": {"completion_tokens": 1}}
        )

    def _load(self, name: str, path: str) -> Say:
        if name in self.adapters:
            told = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set"
            return self._refusal(400, "InvalidUserInput", f"{told} 'load_inplace' to True.")
        if self.files and path not in self.files:
            return self._refusal(404, "NotFoundError", f"Loading lora {name} failed: No adapter found for {path}")
        self.adapters[name] = path
        return self._success(f"Success: LoRA adapter '{name}' added successfully.")

    def _unload(self, name: str) -> Say:
        if name not in self.adapters:
            return self._refusal(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]
        return self._success(f"Success: LoRA adapter '{name}' removed successfully.")

    def _success(self, text: str) -> Say:
        if self.kind == "vllm":
            return Say(body=text.encode())
        return Say(body={"success": True, "error_message": "", "loaded_adapters": self.adapters})

    def _refusal(self, status: int, kind: str, text: str) -> Say:
        if self.kind == "vllm":
            return Say(status, {"error": {"message": text, "type": kind, "param": None, "code": status}})
        return Say(400, {"success": False, "error_message": text, "loaded_adapters": self.adapters})

    def _llama(self, method: str, path: str, body: Any) -> Say:
        if path != "/lora-adapters":
            return Say(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})
        if method == "GET":
            listed = enumerate(self.scales.items())
            return Say(body=[{"id": number, "path": p, "scale": scale} for number, (p, scale) in listed])
        wanted = {each["id"]: each["scale"] for each in body}
        self.scales = {p: wanted.get(number, 0.0) for number, p in enumerate(self.scales)}
        return Say(body={"success": True})


class EngineServer:
    """Serves an engine at a port of its own, by TLS with `tls`. With `key` it refuses requests without this key."""

    def __init__(
        self, engine: AdapterEngine, *, address: str = "127.0.0.1", key: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.engine = engine
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                say = Say(401, {"error": "Unauthorized"})
                if not key or self.headers.get("Authorization") == f"Bearer {key}":
                    say = outer.engine.answer(self.command, self.path, body)
                data = say.body if isinstance(say.body, bytes) else json.dumps(say.body).encode()
                self.send_response(say.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET  # noqa: N815 - the base class asks for this name

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> EngineServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
