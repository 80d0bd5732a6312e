"""The model of the demo: a real one where its server answers, else the tiny one, and why."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import yaml

from automation.catalog.entries import CatalogError
from automation.catalog.fitting import Room
from automation.catalog.loading import load
from examples import demo
from examples.demo_model import TINY, VARIABLE, DemoModel, demo_model, head, smallest
from tests.support.model_server import File, FileServer

EXAMPLE = (Path(__file__).parents[2] / "examples" / "01-first-service" / "service.yaml").read_text()
ROOMS = (Room("this-machine", 16 << 30, kind="machine"),)
CATALOG = load()


def chosen(
    folder: Path, environment: dict[str, str] | None = None, *, rooms: tuple[Room, ...] = ROOMS, why: str = ""
) -> DemoModel:
    return demo_model(CATALOG, environment or {}, rooms=rooms, folder=folder, answers=lambda _: why)


def test_the_smallest_model_for_chats_is_served_where_its_server_answers(tmp_path: Path) -> None:
    entry, variant = smallest(CATALOG)
    assert "chat" in entry.capabilities
    assert variant.bytes == min(
        each.bytes for other in CATALOG.models if "chat" in other.capabilities for each in other.variants
    )
    found = chosen(tmp_path)
    assert (found.id, found.source, found.is_tiny) == (entry.id, variant.source, False)
    assert "smallest" in found.why


def test_else_the_tiny_one_with_the_reason(tmp_path: Path) -> None:
    offline = chosen(tmp_path, why="huggingface.co cannot be reached")
    assert offline.is_tiny and "huggingface.co cannot be reached" in offline.why
    small = chosen(tmp_path, rooms=(Room("this-machine", 256 << 20, kind="machine"),))
    assert small.is_tiny and "does not fit" in small.why


def test_the_variable_decides_without_a_request(tmp_path: Path) -> None:
    def never(_: str) -> str:
        raise AssertionError("a request was sent")

    tiny = demo_model(CATALOG, {VARIABLE: "tiny"}, rooms=ROOMS, folder=tmp_path, answers=never)
    assert (tiny.id, tiny.why) == (TINY, f"{VARIABLE} is `tiny`")
    named = demo_model(CATALOG, {VARIABLE: "llama-3.2-3b"}, rooms=ROOMS, folder=tmp_path, answers=never)
    assert named.id == "llama-3.2-3b" and not named.is_tiny
    with pytest.raises(CatalogError, match=r"no model `qwen3\.5-4c`"):
        chosen(tmp_path, {VARIABLE: "qwen3.5-4c"})
    with pytest.raises(CatalogError, match="needs a model for chats in one file"):
        chosen(tmp_path, {VARIABLE: "gpt-oss-120b"})


def test_the_example_is_the_same_but_for_the_model(tmp_path: Path) -> None:
    model, service = yaml.safe_load_all(chosen(tmp_path).manifest(EXAMPLE, tmp_path / "tiny.gguf"))
    entry, variant = smallest(CATALOG)
    assert model["spec"] == {"source": variant.source, "sha256": variant.files[0].sha256}
    assert model["metadata"]["name"] == service["spec"]["modelRef"] == entry.default_name
    # The tour changes this context.
    assert service["spec"]["contextSize"] == 512
    model, service = yaml.safe_load_all(DemoModel(TINY, "").manifest(EXAMPLE, tmp_path / "tiny.gguf"))
    assert model["spec"] == {"source": f"file://{tmp_path / 'tiny.gguf'}"}
    assert service["spec"]["modelRef"] == "tiny"


def test_the_mirror_is_asked_by_head(tmp_path: Path) -> None:
    asked: list[str] = []

    def answers(url: str) -> str:
        asked.append(url)
        return ""

    demo_model(CATALOG, {"HERDSMAN_HUB_URL": "http://mirror:8"}, rooms=ROOMS, folder=tmp_path, answers=answers)
    (url,) = asked
    assert url.startswith("http://mirror:8/") and url.endswith(smallest(CATALOG)[1].files[0].path)


def test_a_server_that_is_not_there_or_lacks_the_file_is_an_obstacle() -> None:
    with FileServer() as server:
        assert "HTTP 50" in head(server.serve("/x", File(b"x")))  # this server knows no HEAD
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Connections are accepted by the kernel, and nobody answers.
        port = listening.getsockname()[1]
        assert head(f"http://127.0.0.1:{port}/", timeout_s=0.2)
    assert "cannot be reached" in head(f"http://127.0.0.1:{port}/")


def test_a_tool_that_is_not_built_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("HERDSMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    # The demo sets it where it is missing; so it is removed again after the test.
    monkeypatch.setenv("HERDSMAN_GATEWAY_STORE", "sqlite://")
    assert demo.main(["up", "--dir", str(tmp_path / "demo")]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "Error: `" in shown and "run `make setup`, or `herdsman tools install" in shown


def test_brackets_of_an_error_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise demo.DemoFailed("spec.extraArgs[red]: [/is] wrong")

    monkeypatch.setattr(demo.Demo, "up", fail)
    assert demo.main(["up", "--dir", str(tmp_path)]) == 1
    assert "spec.extraArgs[red]: [/is] wrong" in capsys.readouterr().out
