"""`herdsman bundle` with a real HTTP server: create, resume, inspect, load, errors with the next step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli import exits
from automation.cli.main import EXIT_FAILED, EXIT_USAGE, invoke
from tests.support.local_mode import model, service
from tests.support.model_server import File, FileServer
from tools.tiny_model import write_tiny_model

NAME = "/org/m/resolve/v1/m.gguf"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """A server that stands at the address of a mirror of Hugging Face, with one model."""
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with FileServer() as running:
        running.files[NAME] = File(write_tiny_model(tmp_path / "m.gguf").read_bytes())
        monkeypatch.setenv("HERDSMAN_HUB_URL", running.url(""))
        yield running


@pytest.fixture
def small_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering the whole installation takes seconds on a busy machine."""
    monkeypatch.setattr("automation.cli.bundle._installation", lambda: "kind: Namespace\n")


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "m.yaml"
    path.write_text(f"{model('m', source='hf://org/m@v1/m.gguf')}---\n{service('m')}")
    return path


def created(capsys: pytest.CaptureFixture[str], manifests: Path, out: Path, *options: str) -> dict[str, Any]:
    assert invoke(["bundle", "create", "-f", str(manifests), "--out", str(out), "-o", "json", *options]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_bundle_is_made_listed_and_loaded_as_documented(
    server: FileServer, manifests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b.tar"
    told = created(capsys, manifests, out)
    assert told["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    (listed,) = [each for each in told["files"] if each["kind"] == "model"]
    assert listed["sha256"] == hashlib.sha256(server.files[NAME].content).hexdigest()
    assert (listed["bytes"], listed["licence"]) == (len(server.files[NAME].content), "apache-2.0")

    assert invoke(["bundle", "inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "apache-2.0" in shown and listed["sha256"][:12] in shown

    # From here on nothing is on the network.
    server.files.clear()
    assert invoke(["bundle", "load", str(out), "--to", str(tmp_path / "to"), "--dry-run"]) == exits.WOULD_CHANGE
    assert f"Would write {tmp_path / 'to'}: {listed['path']}" in capsys.readouterr().out
    assert not (tmp_path / "to").exists()
    assert invoke(["bundle", "load", str(out), "--sha256", told["sha256"], "--to", str(tmp_path / "to")]) == 0
    first, second = yaml.safe_load_all(capsys.readouterr().out)
    path = Path(first["spec"]["source"].removeprefix("file://"))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == listed["sha256"]
    assert second["kind"] == "InferenceService"
    assert invoke(["bundle", "load", str(out), "--to", str(tmp_path / "to"), "--dry-run"]) == exits.DONE
    capsys.readouterr()

    assert invoke(["bundle", "load", str(out), "-o", "json"]) == 0
    loaded = json.loads(capsys.readouterr().out)
    assert loaded["written"] == [listed["path"]]
    assert loaded["directory"] == str(tmp_path / "data" / "herdsman" / "local")
    assert loaded["documents"][0]["spec"]["source"] == "hf://org/m@v1/m.gguf"

    assert invoke(["bundle", "load", str(out), "--installation"]) == 0
    assert {"Namespace", "Deployment"} <= {each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)}


@pytest.mark.usefixtures("small_installation")
def test_an_interrupted_download_goes_on_and_a_second_bundle_downloads_nothing(
    server: FileServer, manifests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(server.files[NAME].content)
    server.files[NAME].cut_after, server.files[NAME].cuts = size // 2, 1
    first = created(capsys, manifests, tmp_path / "a.tar")
    assert server.sent(NAME) < 1.2 * size
    before = server.sent(NAME)
    second = created(capsys, manifests, tmp_path / "b.tar")
    assert second["sha256"] == first["sha256"] and server.sent(NAME) == before


@pytest.mark.usefixtures("small_installation")
def test_wheels_of_this_version_get_in_and_others_are_refused(
    server: FileServer, manifests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from automation.install.options import version

    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "other-1.0-py3-none-any.whl").write_bytes(b"other")
    command = ["bundle", "create", "-f", str(manifests), "--wheels", str(tmp_path / "wheels")]
    assert invoke(command) == EXIT_FAILED
    assert "pip download" in capsys.readouterr().err.replace("\n", " ")
    (tmp_path / "wheels" / f"herdsman-{version()}-py3-none-any.whl").write_bytes(b"own")
    told = created(capsys, manifests, tmp_path / "b.tar", "--wheels", str(tmp_path / "wheels"))
    assert sum(each["kind"] == "wheel" for each in told["files"]) == 2


@pytest.mark.usefixtures("small_installation")
def test_errors_say_what_to_do(
    server: FileServer, manifests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["bundle", "create"]) == EXIT_USAGE
    assert "--catalog" in capsys.readouterr().err
    assert invoke(["bundle", "create", "--catalog", "qwen3.5-4c"]) == EXIT_FAILED
    assert "did you mean `qwen3.5-4b`" in capsys.readouterr().err
    for out, said in ((tmp_path, "is a folder"), (tmp_path / "missing" / "b.tar", "there is no folder")):
        assert invoke(["bundle", "create", "-f", str(manifests), "--out", str(out)]) == EXIT_FAILED
        assert said in capsys.readouterr().err
    server.files[NAME].statuses = [401]
    assert invoke(["bundle", "create", "-f", str(manifests), "--out", str(tmp_path / "b.tar")]) == EXIT_FAILED
    assert "HF_TOKEN" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "yesterday")
        assert invoke(["bundle", "create", "-f", str(manifests), "--out", str(tmp_path / "b.tar")]) == EXIT_FAILED
        assert "number of seconds" in capsys.readouterr().err
    created(capsys, manifests, tmp_path / "b.tar")
    load = ["bundle", "load", str(tmp_path / "b.tar")]
    for options, said in (
        (["--sha256", "0" * 64], "instead of 000"),
        (["--registry", "r.local/x"], "has no images"),
        (["--to", str(tmp_path / "to"), "--claim", "other/models"], "is in namespace `default`"),
    ):
        assert invoke([*load, *options]) == EXIT_FAILED
        assert said in capsys.readouterr().err
    assert not (tmp_path / "to").exists(), "nothing is written before the claim is checked"
    for options in (["--claim", "default/models"], ["--store", "a", "--to", "b"], ["--to", "b", "--url", "ftp://x"]):
        assert invoke([*load, *options]) == EXIT_USAGE
    assert invoke(["bundle", "inspect", str(manifests)]) == EXIT_FAILED
    assert "is not a bundle" in capsys.readouterr().err
