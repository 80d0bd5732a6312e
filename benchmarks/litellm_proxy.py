"""LiteLLM's proxy beside the gateway: the same model, the same upstream, the same requests. Used by `gateway`.

This repository does not install LiteLLM: `python -m benchmarks gateway --litellm PATH` names its command. LiteLLM
demands its master key from clients. Its virtual keys would need a database. Its settings are those for production in
LiteLLM's documents. LiteLLM sends no telemetry, and reads the prices of models from its installed files.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.wrk import cpu_s, load, running
from kubeapi.json_types import Json

KEY = "sk-benchmark"
PORTS = {1: 18492, 2: 18493}
"""The port of LiteLLM with one worker process, and of another one with two."""
START_S = 300.0
WARM_UP_S = 5
ANSWER_S = 30
"""How long one request may take."""
_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "DISABLE_ADMIN_UI": "True",
}


def beside(
    directory: Path,
    command: str,
    gateway: subprocess.Popen[bytes],
    scripts: tuple[Path, Path],
    *,
    ports: tuple[int, int],
    connections: int,
    seconds: int,
    rounds: int,
    path: str,
    model: str,
) -> Json:
    """Send requests to the running gateway and to LiteLLM in turns; return the rates and their ratios.

    `scripts` are wrk's for the gateway and for LiteLLM. `ports` are those of the gateway and of the upstream.
    """
    told: dict[str, list[float]] = {}
    with (
        _running(directory, command, 1, ports[1], model) as one,
        _running(directory, command, 2, ports[1], model) as two,
    ):
        ways = {
            "gateway": (gateway, ports[0], scripts[0]),
            "LiteLLM": (one, PORTS[1], scripts[1]),
            "LiteLLM, 2 workers": (two, PORTS[2], scripts[1]),
        }
        for turn in range(rounds + 1):
            for way, (server, port, script) in ways.items():
                before_s, length_s = cpu_s(server), seconds if turn else WARM_UP_S
                found = load(port, connections, length_s, path=path, script=script, timeout_s=ANSWER_S)
                if turn:
                    cpu_us = (cpu_s(server) - before_s) / found.requests * 1e6
                    told.setdefault(f"{way}: requests/s", []).append(found.rate)
                    told.setdefault(f"{way}: p50 (ms)", []).append(found.p50_ms)
                    told.setdefault(f"{way}: CPU of a request (µs)", []).append(cpu_us)
    result: Json = {f"beside LiteLLM, {name}": round(statistics.median(each), 2) for name, each in told.items()}
    for way in ("LiteLLM", "LiteLLM, 2 workers"):
        for what, faster, slower in (("requests/s", "gateway", way), ("CPU of a request (µs)", way, "gateway")):
            ratio = statistics.median(told[f"{faster}: {what}"]) / statistics.median(told[f"{slower}: {what}"])
            result[f"beside {way}, ratio of {what.partition(' (')[0]}"] = round(ratio, 1)
    return result | {"LiteLLM": _version(command)}


@contextmanager
def _running(
    directory: Path, command: str, workers: int, upstream: int, model: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run LiteLLM, and wait until it has answered a request."""
    config = directory / "litellm.json"  # JSON is YAML
    config.write_text(json.dumps(_config(upstream, model)))
    port = PORTS[workers]
    arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", str(workers)]
    with running([command, *arguments], port, timeout_s=START_S, env=os.environ | _ENVIRONMENT) as process:
        deadline = time.monotonic() + START_S
        while not _answers(port, model):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("LiteLLM does not answer")
            time.sleep(0.5)
        yield process


def _config(upstream: int, model: str) -> Json:
    parameters = {"model": f"openai/{model}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": model, "litellm_params": parameters}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "set_verbose": False, "callbacks": [], "num_retries": 0},
    }


def _answers(port: int, model: str) -> bool:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _version(command: str) -> str:
    told = subprocess.run(
        [command, "--version"], env=os.environ | _ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"[0-9]+\.[0-9]+\.[0-9]+\S*", told)
    return found[0] if found is not None else told.strip()
