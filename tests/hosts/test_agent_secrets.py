"""An agent reads secret variables at each start: it reports missing ones, and passes on no secrets of the agent's
environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from agent.contract import ProcessReason, SecretReference
from tests.support.agents import PLAIN, agent, command_plan, until
from tests.support.supervising import SERVER

KEY = PLAIN


def test_a_value_of_the_hosts_owner_reaches_the_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_agent")
    secrets = tmp_path / "secrets"
    with agent(tmp_path / "store", "--plan-source", "http", "--secrets", str(secrets)) as made:
        client = made.start()
        plain = command_plan(sys.executable, "-c", SERVER, "{host}", "{port}")
        client.put(KEY, plain)
        first = until(client, KEY, "Ready")
        assert "HF_TOKEN" not in psutil.Process(first.pid).environ()

        wanted = plain.model_copy(update={"secret_env": {"TOKEN": SecretReference(secret="hub", key="token")}})
        client.put(KEY, wanted)
        missing = until(client, KEY, "BackingOff")
        assert missing.reason == ProcessReason.SECRET_UNAVAILABLE
        assert "env[TOKEN].valueFrom.secretKeyRef" in missing.message
        assert str(secrets / "prod" / "hub" / "token") in missing.message

        file = secrets / "prod" / "hub" / "token"
        file.parent.mkdir(parents=True)
        file.touch(0o600)
        file.write_text("hf_value\n")
        ready = until(client, KEY, "Ready")
        assert psutil.Process(ready.pid).environ()["TOKEN"] == "hf_value"
        assert "hf_value" not in json.dumps(client.get(KEY).plan.model_dump(mode="json"))
        kept = [each for each in (tmp_path / "store").rglob("*") if each.is_file()]
        assert kept and not [each for each in kept if b"hf_value" in each.read_bytes()]
        assert "hf_" not in made.output
