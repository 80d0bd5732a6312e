"""`herdsman inspect` with real files and a real HTTP server: what it reads and requests, and what its errors advise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.catalog.inspection import part_names
from automation.cli.main import EXIT_FAILED, invoke
from tests.support.model_server import File, FileServer
from tools.tiny_model import Shape, write_tiny_model

SHAPE = Shape(layers=4, width=64, heads=4, kv_heads=2, context=16384)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", shape=SHAPE)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server that stands at the address of a mirror of Hugging Face."""
    with FileServer() as running:
        monkeypatch.setenv("HERDSMAN_HUB_URL", running.url(""))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def object_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert invoke(["inspect", *arguments, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_file_is_shown_with_its_memory(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = object_of(capsys, str(model), "--context", "8192")
    expected = {"name": "tiny", "architecture": "llama", "licence": "apache-2.0", "context": 16384, "layers": 4}
    assert {key: found[key] for key in expected} == expected
    assert (found["bytes"], found["files"], found["cacheLayers"]) == (model.stat().st_size, 1, 4)
    assert "<|assistant|>" in found["template"]
    (memory,) = found["memory"]
    # 4 layers x 2 heads x (16 + 16) numbers of 2 bytes.
    assert memory["cacheBytes"] == 4 * 2 * 32 * 2 * 8192
    assert memory["totalBytes"] == memory["weightsBytes"] + memory["cacheBytes"] + memory["buffersBytes"]


def test_the_table_has_usual_contexts_up_to_the_trained_one(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["inspect", f"file://{model}"]) == 0
    out = capsys.readouterr().out
    assert "Licence:      apache-2.0" in out
    assert "Layers:       4\n" in out
    assert [line.split()[0] for line in out.split("\n\n")[1].splitlines()] == ["CONTEXT", "4K", "8K", "16K"]


def test_the_template_is_printed_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["inspect", str(model), "--template"]) == 0
    assert capsys.readouterr().out.startswith("{% for message in messages %}")


def test_a_file_on_the_hub_is_read_by_its_header_with_the_token(
    server: FileServer, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    content = model.read_bytes() + bytes(40 << 20)
    server.files["/org/repo/resolve/abc/tiny.gguf"] = File(content)
    found = object_of(capsys, "hf://org/repo@abc/tiny.gguf")
    assert (found["bytes"], found["layers"]) == (len(content), 4)
    assert {request.headers.get("Authorization") for request in server.requests} == {"Bearer hf_secret"}
    assert server.sent("/org/repo/resolve/abc/tiny.gguf") < len(content) / 4
    assert "hf_secret" not in json.dumps(found)


def test_all_files_of_a_split_model_count(
    server: FileServer, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = model.read_bytes()
    parts = {"m-00001-of-00002.gguf": data, "m-00002-of-00002.gguf": bytes(5000)}
    for name, content in parts.items():
        server.files[f"/org/repo/resolve/main/{name}"] = File(content)
        (tmp_path / name).write_bytes(content)
    for source in ("hf://org/repo/m-00001-of-00002.gguf", str(tmp_path / "m-00001-of-00002.gguf")):
        found = object_of(capsys, source)
        assert (found["bytes"], found["files"]) == (len(data) + 5000, 2)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    assert invoke(["inspect", str(tmp_path / "m-00001-of-00002.gguf")]) == EXIT_FAILED
    assert "no file" in capsys.readouterr().err


def test_the_parts_of_a_split_model_are_named() -> None:
    assert part_names("a-00002-of-00003.gguf") == [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert part_names("a.gguf") == ["a.gguf"]
    assert part_names("a-00001-of-99999.gguf") == ["a-00001-of-99999.gguf"]


@pytest.mark.parametrize(
    ("path", "file", "said", "hint"),
    [
        ("gated.gguf", File(statuses=[401] * 3), "gated.gguf", "accept its licence at https://huggingface.co/org/repo"),
        ("gone.gguf", File(statuses=[404] * 3), "gone.gguf", "renamed or removed"),
        ("text.gguf", File(b"<html>" * 100), "not a GGUF file", "only GGUF"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(
    server: FileServer, path: str, file: File, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files[f"/org/repo/resolve/main/{path}"] = file
    assert invoke(["inspect", f"hf://org/repo/{path}"]) == EXIT_FAILED
    err = capsys.readouterr().err
    assert said in err
    assert hint in err


def test_without_a_connection_the_mirror_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileServer() as closed:
        address = closed.url("")
    monkeypatch.setenv("HERDSMAN_HUB_URL", address)
    assert invoke(["inspect", "qwen3.5-4b"]) == EXIT_FAILED
    assert "HERDSMAN_HUB_URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "said", "hint"),
    [
        ("hf://org/repo", "names a repository", "hf://org/repo/FILE.gguf"),
        ("hf://org/repo@v1", "names a repository", "hf://org/repo@v1/FILE.gguf"),
        ("pvc://claim/x.gguf", "only by pods", "https"),
        ("ftp://x/y", "not supported", ""),
        ("qwen3.5-4", "neither a file here nor an id", "qwen3.5-4b"),
        ("./none/x.gguf", "there is no file none/x.gguf", "no directory none"),
    ],
)
def test_a_source_that_cannot_be_read_says_what_to_do(
    source: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["inspect", source]) == EXIT_FAILED
    err = capsys.readouterr().err
    assert said in err
    assert hint in err


def test_a_missing_file_names_its_neighbours(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["inspect", str(model.with_name("tyni.gguf"))]) == EXIT_FAILED
    assert "has tiny.gguf" in capsys.readouterr().err


def test_an_incomplete_download_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "half.gguf").write_bytes(model.read_bytes()[:200])
    assert invoke(["inspect", str(tmp_path / "half.gguf")]) == EXIT_FAILED
    assert "incomplete" in capsys.readouterr().err
