"""`herdsman agent store`: the list of models, the models that a prune removes, and that it removes none while the plans
are unknown.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from agent.contract import FilePlan, ProcessPlan
from agent.server.store import STATE_FILE, ProcessRecord, Store
from automation.cli.main import EXIT_FAILED, EXIT_USAGE, invoke


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two models, of which a plan names one; the other was last used an hour ago."""
    for key in ("needed", "old"):
        (tmp_path / key).mkdir()
        (tmp_path / key / "m.gguf").write_bytes(os.urandom(64 * 1024))
        (tmp_path / key / ".lock").touch()
    (tmp_path / "old/.used").touch()
    os.utime(tmp_path / "old/.used", (time.time() - 3600, time.time() - 3600))
    file = FilePlan(source="https://x/m.gguf", cache_key="needed", file_name="m.gguf")
    plan = ProcessPlan(host="h", service="s", argv=("x",), service_name="s", file=file)
    Store(tmp_path).write_record("ns/s", ProcessRecord(plan=plan))
    return tmp_path


def test_models_are_listed_with_who_needs_them(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["agent", "store", "list", "--store", str(store)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[1] == ["old", "64K", "m.gguf", "60m"]
    assert [shown[2][0], shown[2][-1]] == ["needed", "yes"]
    assert invoke(["agent", "store", "list", "--store", str(store), "-o", "json"]) == 0
    old, needed = json.loads(capsys.readouterr().out)
    assert (old["key"], old["needed"], needed["needed"], old["files"]) == ("old", False, True, ["m.gguf"])


def test_a_prune_tells_first_and_removes_what_nobody_names(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["agent", "store", "prune", "--store", str(store)]
    assert invoke(command) == 0
    assert "64K can be freed" in capsys.readouterr().out
    assert (store / "old/m.gguf").exists()
    assert invoke([*command, "--yes"]) == 0
    assert "64K freed" in capsys.readouterr().out
    assert not (store / "old").exists()
    assert (store / "needed/m.gguf").exists()
    assert invoke(command) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_nothing_goes_while_the_agents_state_cannot_be_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / STATE_FILE).write_text("{")
    assert invoke(["agent", "store", "prune", "--store", str(store), "--yes"]) == EXIT_FAILED
    assert "cannot be read" in capsys.readouterr().err
    assert (store / "old/m.gguf").exists()


def test_a_wrong_store_or_size_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["agent", "store", "list", "--store", str(tmp_path / "none")]) == EXIT_FAILED
    assert "is not a store" in capsys.readouterr().err
    run = ["agent", "run", "--host", "h", "--plan-source", "http", "--store", str(tmp_path), "--address", "127.0.0.1"]
    assert invoke([*run, "--store-size", "lots"]) == EXIT_USAGE
    assert "--store-size" in capsys.readouterr().err
