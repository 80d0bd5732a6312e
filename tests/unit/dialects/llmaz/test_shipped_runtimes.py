"""The BackendRuntimes that are part of Herdsman: their contents, and how their pods finish requests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kubeapi.json_types import Json
from program.dialects.llmaz.parse.runtimes import SHIPPED, find_runtime, shipped
from tests.unit.dialects.llmaz.objects import Cluster

RECORDED = Path(__file__).parents[3] / "conformance" / "llmaz" / "fixtures" / "backendruntimes.json"

BUSY = {
    "llamacpp": ("llamacpp:requests_processing 1", "llamacpp:requests_deferred 2"),
    "vllm": (
        'vllm:num_requests_running{engine="0",model_name="m"} 1.0',
        'vllm:num_requests_waiting{engine="0",model_name="m"} 12.0',
    ),
    "tgi": ("tgi_batch_current_size 3", "tgi_queue_size 10"),
}
IDLE = {
    "llamacpp": "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 70\n",
    "vllm": (
        'vllm:num_requests_running{model_name="m"} 0.0\nvllm:num_requests_waiting{model_name="m"} 0.0\n'
        'vllm:num_requests_waiting_by_reason{model_name="m"} 3.0\nvllm:prompt_tokens_total{model_name="m"} 90.0\n'
    ),
    "tgi": "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 0\ntgi_queue_size 0\ntgi_request_count 5\n",
}


def recorded() -> dict[str, Json]:
    return {each["metadata"]["name"]: each["spec"] for each in json.loads(RECORDED.read_text())}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_runtime_says_what_the_peers_says_but_for_its_scripts(name: str) -> None:
    ours, theirs = shipped()[name].spec, recorded()[name]
    assert set(ours) == set(theirs)
    for field in set(ours) - {"lifecycle", "recommendedConfigs"}:
        assert ours[field] == theirs[field], field
    assert len(ours["recommendedConfigs"]) == len(theirs["recommendedConfigs"])
    for mine, other in zip(ours["recommendedConfigs"], theirs["recommendedConfigs"], strict=True):
        if name == "ollama":
            mine, other = {**mine, "args": []}, {**other, "args": []}
        assert mine == other
    if "lifecycle" in ours:
        assert ours["lifecycle"]["preStop"]["exec"]["command"][:2] == ["/bin/sh", "-c"]


def test_they_are_found_where_the_cluster_has_none() -> None:
    assert find_runtime("tgi", Cluster()) is shipped()["tgi"]
    assert {name: shipped()[name].engine for name in SHIPPED} == {
        name: {"tensorrt-llm": "tensorrt-llm"}.get(name, name) for name in SHIPPED
    }


def run_shell(folder: Path, script: str, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script with these programs first on PATH."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HERE": str(folder)}
    return subprocess.run(
        ["/bin/sh", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )


# Each call prints and deletes one file of metrics; without a file it fails as for a server that has stopped.
CURL = """echo "$*" >> "$HERE/asked"
next="$(ls "$HERE" | grep '^metrics' | head -n 1)"
[ -n "$next" ] || exit 7
cat "$HERE/$next"; rm "$HERE/$next"
"""


@pytest.mark.parametrize("name", BUSY)
def test_a_pod_ends_only_once_its_server_is_idle(name: str, tmp_path: Path) -> None:
    script = shipped()[name].spec["lifecycle"]["preStop"]["exec"]["command"][2]
    running, waiting = BUSY[name]
    (tmp_path / "metrics1").write_text(f"{running}\n{IDLE[name]}")
    (tmp_path / "metrics2").write_text(f"{IDLE[name]}{waiting}\n")
    (tmp_path / "metrics3").write_text(IDLE[name])
    (tmp_path / "metrics4").write_text("never asked for\n")
    ended = run_shell(tmp_path, script, {"curl": CURL, "sleep": 'echo "$1" >> "$HERE/slept"\n'})
    assert ended.stderr == ""
    assert (tmp_path / "slept").read_text().split() == ["5", "5"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 3
    # 8080 is the port that the server listens on.
    assert all("127.0.0.1:8080/metrics" in line for line in asked)


@pytest.mark.parametrize("name", BUSY)
def test_a_server_that_is_gone_holds_nobody_up(name: str, tmp_path: Path) -> None:
    script = shipped()[name].spec["lifecycle"]["preStop"]["exec"]["command"][2]
    run_shell(tmp_path, script, {"curl": CURL, "sleep": "exit 1\n"})
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


OLLAMA = """case "$1" in
serve) echo "serve $OLLAMA_HOST" >> "$HERE/asked"; touch "$HERE/up"; exec tail -f /dev/null ;;
list) [ -e "$HERE/up" ] ;;
run) echo "run $2" >> "$HERE/asked"; [ "$2" = tinyllm:1b ] || exit 1; kill -TERM "$PPID" ;;
esac
"""


def test_ollama_is_asked_for_the_model_once_it_is_up_and_stays(tmp_path: Path) -> None:
    script = shipped()["ollama"].config("default", chosen=False)["args"][0].replace("{{ .ModelName }}", "tinyllm:1b")
    run_shell(tmp_path, script, {"ollama": OLLAMA})
    assert [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()] == ["serve", "run"]


def test_ollama_fails_where_the_model_cannot_be_had(tmp_path: Path) -> None:
    script = shipped()["ollama"].config("default", chosen=False)["args"][0].replace("{{ .ModelName }}", "none:1b")
    ended = run_shell(tmp_path, script, {"ollama": OLLAMA.replace("exec tail -f /dev/null", "exec sleep 1")})
    assert ended.returncode == 1
