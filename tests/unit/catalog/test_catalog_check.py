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
        ({"header": {"layer_count": 4, "head_counts_kv": [0, 0, 0, 1]}}, "header.head_counts_kv is"),
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


def test_a_projector_of_unknown_size_is_said_as_unknown(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/org/m/resolve/v1/eye.gguf"] = File(b"GGUF", ranges=False, says_length=False)
    catalog = json.loads(Path(written(server, tmp_path)).read_text())
    catalog["models"][0]["variants"][0]["projector"] = {"path": "eye.gguf", "bytes": 4}
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    (found,) = checks(capsys, str(tmp_path / "catalog.json"))
    assert "projector.bytes is 4, and the server does not say the size of the file" in json.dumps(found)


def checks(capsys: pytest.CaptureFixture[str], catalog: str, *, code: int = EXIT_FAILED) -> list[dict[str, str]]:
    assert invoke(["catalog", "check", "--catalog", catalog, "-o", "json"]) == code
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return found


def test_only_the_beginning_of_a_large_file_is_requested(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = written(server, tmp_path)
    path = "/org/m/resolve/v1/m.gguf"
    size = 64 << 20
    server.files[path] = File(server.files[path].content.ljust(size, b"\0"))
    document = json.loads(Path(catalog).read_text())
    document["models"][0]["variants"][0]["files"][0]["bytes"] = size
    Path(catalog).write_text(json.dumps(document))
    assert checks(capsys, catalog, code=0)[0]["state"] == "ok"
    assert server.requests and all(each.range for each in server.requests)
    assert sum(sum(each.bytes_sent) for each in server.requests) < size / 8


@pytest.mark.parametrize(
    ("fault", "said", "hint"),
    [
        (File(statuses=[401] * 9), "401", "HF_TOKEN"),
        (File(statuses=[404] * 9), "404", "renamed or removed"),
        (File(b"<html>not a model</html>" * 99), "GGUF", "only GGUF files"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_row_with_the_next_step(
    fault: File, said: str, hint: str, server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = written(server, tmp_path)
    server.files["/org/m/resolve/v1/m.gguf"] = fault
    (row,) = checks(capsys, catalog)
    assert row["state"] == "failed" and said in row["detail"] and hint in row["hint"], row


def test_the_hub_may_redirect_to_another_address(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = written(server, tmp_path)
    path = "/org/m/resolve/v1/m.gguf"
    server.files["/cdn/m"] = server.files[path]
    server.files[path] = File(redirect=server.url("/cdn/m"))
    assert checks(capsys, catalog, code=0)[0]["state"] == "ok"


def test_each_variant_is_a_row_and_one_fault_does_not_hide_the_others(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = written(server, tmp_path)
    document = json.loads(Path(catalog).read_text())
    (variant,) = document["models"][0]["variants"]
    gone = {**variant, "quant": "Q8_0", "files": [{"path": "gone.gguf", "bytes": 1}]}
    document["models"][0]["variants"] = [gone, variant]
    Path(catalog).write_text(json.dumps(document))
    assert {each["check"]: each["state"] for each in checks(capsys, catalog)} == {"m Q8_0": "failed", "m F32": "ok"}


@pytest.mark.parametrize(("listed", "said"), [(2, ""), (1, "files has 1, the model has 2")])
def test_the_parts_of_a_split_model_are_counted_and_added_up(
    listed: int, said: str, server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = written(server, tmp_path)
    content = server.files["/org/m/resolve/v1/m.gguf"].content
    parts = {f"m-0000{number}-of-00002.gguf": body for number, body in ((1, content), (2, b"weights"))}
    for name, body in parts.items():
        server.files[f"/org/m/resolve/v1/{name}"] = File(body)
    files = [{"path": name, "bytes": len(body)} for name, body in parts.items()][:listed]
    document = json.loads(Path(catalog).read_text())
    document["models"][0]["variants"][0]["files"] = files
    Path(catalog).write_text(json.dumps(document))
    (row,) = checks(capsys, catalog, code=EXIT_FAILED if said else 0)
    assert said in row["detail"]


@pytest.mark.parametrize(
    ("size", "content", "said"),
    [(3, b"abc", ""), (4, b"abc", "projector.bytes is 4, the file has 3"), (3, None, "mmproj.gguf")],
)
def test_the_projector_is_checked_too(
    size: int,
    content: bytes | None,
    said: str,
    server: FileServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog = written(server, tmp_path)
    if content is not None:
        server.files["/org/m/resolve/v1/mmproj.gguf"] = File(content)
    document = json.loads(Path(catalog).read_text())
    document["models"][0]["variants"][0]["projector"] = {"path": "mmproj.gguf", "bytes": size}
    Path(catalog).write_text(json.dumps(document))
    (row,) = checks(capsys, catalog, code=EXIT_FAILED if said else 0)
    assert said in row["detail"]


def test_a_check_confirms_the_numbers_that_had_no_source(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = written(server, tmp_path, unchecked=["header.recurrent_bytes"])
    (row,) = checks(capsys, catalog, code=0)
    assert "the file has the same header.recurrent_bytes" in row["detail"] and "remove `unchecked`" in row["hint"]
    assert invoke(["catalog", "info", "m", "--catalog", catalog, "--local"]) == 0
    shown = capsys.readouterr().out
    assert "source: not yet checked (recurrent_bytes; `herdsman catalog check m`" in shown
    wrong = written(server, tmp_path, unchecked=["header"], header={"layer_count": 5})
    assert "header.layer_count is 5" in checks(capsys, wrong)[0]["detail"]


def test_unchecked_numbers_must_exist(server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = written(server, tmp_path, unchecked=["header.size"])
    assert invoke(["catalog", "check", "--catalog", catalog]) == EXIT_FAILED
    assert "`unchecked` names `header.size`" in capsys.readouterr().err


def test_the_numbers_of_the_catalog_without_a_source_are_marked() -> None:
    marked = {entry.id: entry.unchecked for entry in load().models if entry.unchecked}
    assert marked["qwen3.5-0.8b"] == ("header.recurrent_bytes",) and marked["qwen3-8b"] == ("header",)
    sourced = {"qwen3.5-4b", "qwen3.6-27b", "granite-4-h-tiny", "llama-3.1-8b", "glm-4.7-flash", "ministral-3-8b"}
    assert not sourced & set(marked) and len(marked) == 13


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
