"""The runtime's facts about llama-server, checked on a real one: arguments, completion check, idleness, API key."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from program.desired.engines import LlamaCpp, LlamaCppRouter, SecretKey, SpeculativeDecoding
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from tests.support.builders import http_model, repository_model, service
from tests.support.controlplane import eventually
from tests.support.supervising import free_port

DRAFT = SpeculativeDecoding(type="draft-simple", n_draft_max=2, p_min=0.25)
NGRAM = SpeculativeDecoding(type="ngram-mod", n_draft_max=4)


@contextlib.contextmanager
def running(llama_server: Path, arguments: list[str], **env: str) -> Iterator[str]:
    """Run llama-server with a free port in place of `{port}`, and yield its URL once /health succeeds."""
    port = str(free_port())
    command = [str(llama_server), *(port if argument == "{port}" else argument for argument in arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **env})
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: ask(f"{url}/health")[0] == 200, timeout_s=60, what=f"{' '.join(command)} to be well")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()
    except OSError:
        return 0, ""


def arguments(desired: DesiredService, model: Path) -> list[str]:
    argv = runtime_for(desired.engine).argv(
        desired, model_path=str(model), port=0, host="127.0.0.1", draft_path=str(model)
    )
    argv[argv.index("--port") + 1] = "{port}"
    return argv


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "embedding"},
        {"mode": "rerank"},
        {"engine": LlamaCpp(context_size=256, speculative=NGRAM)},
        {"engine": LlamaCpp(context_size=256, speculative=DRAFT), "draft": http_model(name="draft")},
    ],
    ids=["embedding", "rerank", "ngram", "draft"],
)
def test_a_real_llama_server_proves_itself_as_it_is_asked(
    llama_server: Path, tiny_model: Path, fields: dict[str, Any]
) -> None:
    desired = service(**{"engine": LlamaCpp(context_size=256), **fields})
    runtime = runtime_for(desired.engine)
    proof, idle, progress = runtime.completion(desired), runtime.idle_probe(desired), runtime.progress(desired)
    assert proof is not None
    assert idle is not None
    assert progress is not None
    with running(llama_server, arguments(desired, tiny_model)) as url:
        status, answer = ask(url + proof.path, proof.body)
        assert status == 200, answer
        assert {"choices", "data", "results"} & set(json.loads(answer))
        slots = json.loads(ask(url + idle.path)[1])
        assert [slot["is_processing"] for slot in slots] == [False] * len(slots)
        metrics = ask(f"{url}/metrics")[1].splitlines()
    for name in (progress.generated_tokens, progress.running_requests):
        assert any(line.startswith(f"{name} ") for line in metrics)


def test_a_key_from_the_environment_guards_all_that_the_runtime_says(llama_server: Path, tiny_model: Path) -> None:
    desired = service(engine=LlamaCpp(context_size=256), api_key=SecretKey(name="keys", key="api-key"))
    [variable] = runtime_for(desired.engine).env(desired)
    proof = runtime_for(desired.engine).completion(service())
    assert proof is not None
    with running(llama_server, arguments(desired, tiny_model), **{variable["name"]: "let-me-in"}) as url:
        assert [ask(url + path)[0] for path in ("/slots", "/metrics")] == [401, 401]
        assert ask(url + proof.path, proof.body)[0] == 401
        assert ask(url + proof.path, proof.body, Authorization="Bearer let-me-in")[0] == 200


def test_a_set_of_files_is_opened_with_its_companion_draft(
    llama_server: Path, tiny_model: Path, tmp_path: Path
) -> None:
    for name in ("q4/m.gguf", "draft/d.gguf"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(tiny_model, tmp_path / name)
    companion = SpeculativeDecoding(type="draft-simple", draft_path="draft/d.gguf")
    desired = service(
        engine=LlamaCpp(context_size=256, speculative=companion),
        model=repository_model(files=("q4/m.gguf", "draft/d.gguf")),
    )
    with running(llama_server, arguments(desired, tmp_path / "q4/m.gguf")) as url:
        slots = json.loads(ask(f"{url}/slots")[1])
    assert all(slot["speculative"] for slot in slots)


def test_the_router_offers_the_models_of_its_directory(llama_server: Path, tiny_model: Path) -> None:
    desired = service(engine=LlamaCppRouter(extra_args=("--models-dir", str(tiny_model.parent), "-c", "256")))
    with running(llama_server, arguments(desired, tiny_model)) as url:
        offered = json.loads(ask(f"{url}/v1/models")[1])["data"]
        assert [model["id"] for model in offered] == [tiny_model.stem]
