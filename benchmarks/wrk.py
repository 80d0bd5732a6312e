"""HTTP load on loopback: nginx as the server, wrk as the client. Used by `proxy`, `gateway` and `litellm_proxy`."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

TIMEOUT_S = 60.0
END_S = 30.0
"""How long a server may take to end. Then it is killed."""
_POLL_S = 0.005
_NGINX = """
worker_processes 1; daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.err;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 10000000;
  client_body_temp_path {directory}/b; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f;
  uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ default_type application/json; return 200 '{answer}'; }} }}
}}
"""
_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True)
class Load:
    """What wrk measured."""

    rate: float
    """Requests a second."""
    p50_ms: float
    p99_ms: float
    requests: int


def missing_programs() -> list[str]:
    """Return which of the two programs are not on PATH."""
    return [tool for tool in ("nginx", "wrk") if shutil.which(tool) is None]


def nginx(directory: Path, port: int, answer: str = '{"ok":true}') -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run an nginx that answers every request with this JSON."""
    config = directory / "nginx.conf"
    config.write_text(_NGINX.format(directory=directory, port=port, answer=answer))
    return running(["nginx", "-c", str(config)], port)


def load(
    port: int, connections: int, seconds: int, *, path: str = "/", script: Path | None = None, timeout_s: int = 2
) -> Load:
    """Run wrk over `connections` connections; `script` is its Lua script, which makes the requests.

    Raises RuntimeError for any failed request, also for one that takes longer than `timeout_s`.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={timeout_s}s", "--latency"]
    command += [f"--script={script}"] if script is not None else []
    text = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{path}"], check=True, capture_output=True, text=True
    ).stdout
    rate, count = re.search(r"Requests/sec:\s+([0-9.]+)", text), re.search(r"([0-9]+) requests in", text)
    if rate is None or count is None or "Socket errors" in text or "Non-2xx" in text:
        raise RuntimeError(text)
    return Load(float(rate[1]), _quantile(text, 50), _quantile(text, 99), int(count[1]))


def _quantile(text: str, percent: int) -> float:
    found = re.search(rf"^\s+{percent}%\s+([0-9.]+)(us|ms|s)", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(text)
    return float(found[1]) * _MS[found[2]]


@contextlib.contextmanager
def running(
    command: list[str], port: int, *, timeout_s: float = TIMEOUT_S, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, wait until it listens, and end it after the block. Without `env` it gets this environment.

    Raises RuntimeError if it does not listen within `timeout_s`.
    """
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + timeout_s
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen on {port}")
            time.sleep(_POLL_S)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(server: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of a server and its child processes so far, in seconds."""
    process = psutil.Process(server.pid)
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


def listens(port: int) -> bool:
    """Return whether a server listens on this port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
