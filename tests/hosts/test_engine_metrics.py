"""A real llama-server serves the metrics of llama.cpp that the dashboards use."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

from tests.support.controlplane import eventually
from tests.support.engine_metrics import LLAMA_CPP
from tests.support.supervising import free_port
from tools.tiny_model import write_tiny_model


def test_a_real_llama_server_serves_every_metric_on_the_list(llama_server: Path, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    port = free_port()
    arguments = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--ctx-size", "256", "--metrics"]
    process = subprocess.Popen([llama_server, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        text = eventually(lambda: _metrics(port), timeout_s=60, what="llama-server to serve metrics")
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)) >= LLAMA_CPP


def _metrics(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
