"""`herdsman catalog check` against a real HTTP server: files that agree with their entry, differ, or are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.catalog.loading import load
from automation.cli.main import EXIT_FAILED, invoke
from tests.support.model_server import File, FileServer
from tools.tiny_model import Recurrent, Shape, write_tiny_model

SHAPE = Shape(
    architecture="qwen35", layers=4, width=64, heads=4, kv_heads=2, head_width=32, context=4096, recurrent=Recurrent()
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server that stands at the address of a mirror of Hugging Face."""
    with FileServer() as running:
        monkeypatch.setenv("HERDSMAN_HUB_URL", running.url(""))
        yield running


def written(server: FileServer, tmp_path: Path, **changes: Any) -> str:
    """Serve a model at a revision, and write a catalog of it with changes to the entry."""
    content = write_tiny_model(tmp_path / "m.gguf", shape=SHAPE).read_bytes()
    server.files["/org/m/resolve/v1/m.gguf"] = File(content)
    file = {"path": "m.gguf", "bytes": len(content), **changes.pop("file", {})}
    header = {"layer_count": 4, "head_counts_kv": [0, 0, 0, 2], "recurrent_bytes": 3 * (3 * 384 + 32 * 128) * 4}
    entry = {
        "id": "m",
        "context": 4096,
        "header": header,
        "variants": [{"quant": "F32", "repository": "org/m", "revision": "v1", "files": [file]}],
        **changes,
    }
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps({"version": 1, "models": [entry]}))
    return str(path)


def test_an_entry_that_agrees_with_its_file_is_ok(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["catalog", "check", "--catalog", written(server, tmp_path), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["check"], found["state"]) == ("m F32", "ok")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"file": {"bytes": 7}}, "bytes is 7, the files have"),
        ({"file": {"bytes": 7, "rounded": True}}, "bytes is 7"),
        ({"context": 8192}, "context is 8192, the header has 4096"),
        ({"header": {"layer_count": 5}}, "header.layer_count is 5, the header has 4"),
        ({"file": {"path": "gone.gguf"}}, "gone.gguf"),
    ],
)
def test_what_differs_is_named(
    changes: dict[str, Any], said: str, server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["catalog", "check", "m", "--catalog", written(server, tmp_path, **changes)]) == EXIT_FAILED
    assert said in capsys.readouterr().out


def test_a_rounded_size_may_be_off_by_one_percent(server: FileServer, tmp_path: Path) -> None:
    size = write_tiny_model(tmp_path / "m.gguf", shape=SHAPE).stat().st_size
    near = {"bytes": int(size * 1.009), "rounded": True}
    assert invoke(["catalog", "check", "--catalog", written(server, tmp_path, file=near)]) == 0


def test_an_unknown_model_is_refused_before_any_request(server: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["catalog", "check", "qwen3.5-4"]) == EXIT_FAILED
    assert "did you mean" in capsys.readouterr().err
    assert server.requests == []


def test_each_file_of_the_catalog_is_asked_at_its_revision(server: FileServer) -> None:
    assert invoke(["catalog", "check", "qwen3.6-27b", "gpt-oss-120b"]) == EXIT_FAILED
    revision = load().entry("gpt-oss-120b").variants[0].revision
    path = f"/ggml-org/gpt-oss-120b-GGUF/resolve/{revision}/gpt-oss-120b-mxfp4-00001-of-00003.gguf"
    assert path in {request.path for request in server.requests}
    assert len({request.path for request in server.requests}) == 3
