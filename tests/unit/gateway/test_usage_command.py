"""`herdsman usage` with the store of this user."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from automation.cli.main import EXIT_USAGE, invoke
from gateway.accounting.ledger_job import Batch, Job, Usage, UsageKey
from gateway.accounting.stores import SqliteStore, default_path


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("HERDSMAN_GATEWAY_STORE", "HERDSMAN_GATEWAY_STORE_FILE"):
        monkeypatch.delenv(name, raising=False)
    hour = int(time.time()) // 3600 * 3600
    usage = {
        UsageKey(hour, "ab12", "ci", "ml", "prod/chat"): Usage(3, 1, 0, 0, 300, 100, 50, 2_500_000),
        UsageKey(hour, "", "", "", "prod/chat"): Usage(1, prompt_tokens=7),
        UsageKey(hour - 90 * 86400, "ab12", "ci", "ml", "prod/old"): Usage(9),
    }
    SqliteStore(str(default_path())).exchange(Job("g", Batch(1, {}, usage), (), {}))


@pytest.mark.usefixtures("written")
def test_usage_is_shown_as_a_table_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["usage"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["KEY", "ID", "REQUESTS"]
    assert lines[1:] == [
        ["ci", "ab12", "3", "1", "0", "0", "300", "100", "50", "0.0025"],
        ["-", "-", "1", "0", "0", "0", "7", "0", "0", "0"],
    ]
    assert invoke(["usage", "--by", "model", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["requests"], row["promptTokens"], row["usd"]) == ("prod/chat", 4, 307, "0.0025")
    assert invoke(["usage", "--by", "team", "-o", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "team,requests,failed,incomplete,estimated,promptTokens,cachedTokens,completionTokens,usd",
        "ml,3,1,0,0,300,100,50,0.0025",
    ]
    assert invoke(["usage", "--by", "hour", "--since", "52w", "-o", "json"]) == 0
    assert [each["requests"] for each in json.loads(capsys.readouterr().out)] == [9, 4]


def test_a_missing_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HERDSMAN_GATEWAY_STORE")
    assert invoke(["usage"]) == 1
    assert "gateway.db" in capsys.readouterr().err
    monkeypatch.setenv("HERDSMAN_GATEWAY_STORE", "mysql://me:secret@db")
    assert invoke(["usage"]) == 1
    told = capsys.readouterr().err
    assert "postgres://" in told and "secret" not in told
    assert invoke(["usage", "--since", "soon"]) == EXIT_USAGE
    assert not list(tmp_path.iterdir())
