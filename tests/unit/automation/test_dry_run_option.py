"""Each command that changes something has `--dry-run`, and the older words for it still work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from automation.cli.main import COMMANDS, GROUPS, application, invoke
from kubeapi import kinds
from program.dialects.llmkube.parse.source import cache_key
from tests.support.pod_proxy import PodProxy, Say, api_status

READS = frozenset(
    {
        *(
            "agent status",
            "agent store list",
            "bench",
            "bundle inspect",
            "cache list",
            "catalog check",
            "catalog info",
            "catalog list",
        ),
        *("cluster env", "cluster status", "completion", "convert", "crds", "describe", "doctor", "drift", "export"),
        *("get", "history", "host list", "inspect", "key list", "leaders", "list", "local status", "logs"),
        *("policy check", "preview", "provider path", "ps", "queue", "render", "state doctor", "state list"),
        *("status", "tools list", "top", "usage", "version"),
    }
)
"""Commands that change nothing. `bench` sends requests."""
RUNS = frozenset({"agent run", "chat", "console", "gateway", "open", "provider serve", "run"})
"""Commands that work until they are ended. `herdsman preview` is the dry run of `herdsman run`."""
OF_THIS_MACHINE = frozenset(
    {
        *("cluster down", "cluster load", "cluster up"),  # a cluster for tests
        *("bundle create", "image build", "monitoring", "state backup"),  # one file that the command line names
        "tools install",  # skips what is there; `tools list` shows what is missing
    }
)
OLDER_NAMES = frozenset({"adopt", "fleet forget", "fleet give", "fleet take", "install", "rollback"})
"""Commands that had `--preview` before."""


def commands() -> dict[str, Any]:
    def below(group: Any, words: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, f"{words}{name} ")
            elif not command.hidden:
                yield f"{words}{name}", command

    return dict(below(typer.main.get_command(application([*COMMANDS, *GROUPS])), ""))


ALL = commands()
SOURCE = "https://models.example/a.gguf"
CHANGES = sorted(set(ALL) - READS - RUNS - OF_THIS_MACHINE)


def names_of(command: Any) -> dict[str, Any]:
    return {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}


def test_each_command_is_in_one_list() -> None:
    assert sorted((READS | RUNS | OF_THIS_MACHINE) - set(ALL)) == []
    assert len(CHANGES) > 35


@pytest.mark.parametrize("name", CHANGES)
def test_a_command_that_changes_something_has_a_dry_run(name: str) -> None:
    option = names_of(ALL[name]).get("--dry-run")
    assert option is not None and not option.hidden


@pytest.mark.parametrize("name", sorted(READS | RUNS))
def test_a_command_that_changes_nothing_has_none(name: str) -> None:
    assert "--dry-run" not in names_of(ALL[name])


@pytest.mark.parametrize("name", sorted(ALL))
def test_an_older_word_is_accepted_and_not_shown(name: str) -> None:
    older = names_of(ALL[name]).get("--preview")
    assert (older is not None) == (name in OLDER_NAMES)
    assert older is None or older.hidden


def test_a_refusal_during_a_dry_run_is_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {
        "apiVersion": kinds.MODELS.api_version,
        "kind": "Model",
        "metadata": {"name": "m", "namespace": "default", "uid": "u"},
        "spec": {"source": SOURCE},
        "status": {"phase": "Ready", "path": "/models/k/a.gguf", "cacheKey": cache_key(SOURCE)},
    }
    with PodProxy() as api:
        api.other = lambda _method, path, _body: (
            api_status(403, "Forbidden", "jobs is forbidden") if "/jobs/" in path else Say(body=model)
        )
        file = tmp_path / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": api.client.server}}
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        users = [{"name": "c", "user": {}}]
        config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
        file.write_text(yaml.safe_dump(config))
        assert invoke(["cache", "warm", "m", "--dry-run", "--kubeconfig", str(file)]) == 1
    assert "jobs is forbidden" in capsys.readouterr().err
