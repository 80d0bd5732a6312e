"""The command line as a whole: help, exit codes, and that a command imports only what it needs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.cli.main import COMMANDS, EXIT_USAGE, GROUPS, function_of, invoke

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*COMMANDS, *GROUPS, "version"))


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([name, "--help"]) == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["made-up"], ["get", "--made-up"], ["agent", "run"], ["cluster", "sideways"]])
def test_wrong_usage_has_its_own_exit_code(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == EXIT_USAGE
    assert "Error" in capsys.readouterr().err


def hints() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each `herdsman …` in the code's messages: its place, the words of the command, and its options."""
    for package in ("agent", "automation", "components", "program"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for said in re.findall(r"`herdsman ([a-z][^`|\n]*)`", path.read_text()):
                words = re.sub(r"\{[^}]*\}", "X", said).split()
                named = tuple(word for word in words if re.fullmatch(r"--?[a-z][a-z-]*|-[A-Z]", word))
                within = words[0] in GROUPS and len(words) > 1 and words[1].isalpha()
                yield f"{path.relative_to(ROOT)}: {said}", " ".join(words[: 1 + within]), named


def test_every_hint_names_a_command_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, str] = {}
    wrong = []
    for where, command, options in hints():
        if command not in told:
            capsys.readouterr()
            invoke([*command.split(), "--help"])
            told[command] = capsys.readouterr().out
        wrong += [f"{where}: {each}" for each in options if not re.search(rf"(?<![\w-]){each}\b", told[command])]
        wrong += [where] if not told[command] else []
    assert wrong == []
    assert len(told) > 10, "the messages were found"


def test_a_value_that_makes_no_sense_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--state", "/not/a/url"]) == EXIT_USAGE
    assert "state" in capsys.readouterr().err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["version"]) == 0
    assert capsys.readouterr().out.strip()


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out.strip()


def test_an_unknown_command_has_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["statsu"]) == EXIT_USAGE
    assert "Did you mean 'status'" in capsys.readouterr().err


def test_the_help_begins_with_the_everyday_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    told = capsys.readouterr().out
    assert told.index("Everyday") < told.index("Operate") < told.index("Admin")


def test_the_agent_brings_neither_pulumi_nor_the_crds() -> None:
    program = (
        "import sys; from automation.cli.main import invoke; invoke(['agent', 'run', '--help']); "
        "sys.exit(any(name.split('.')[0] in ('pulumi', 'grpc', 'components') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


SLOW_TO_IMPORT = {
    *("pulumi", "pulumi_kubernetes", "grpc", "google.protobuf", "kubernetes", "cryptography", "fabric", "paramiko"),
    *("gguf", "numpy", "celpy", "prometheus_client", "structlog", "stamina"),
    *("program.desired.service", "program.dialects.llmkube.schema", "program.runtimes", "components.rendered"),
}
"""Packages, and modules of pydantic models, that take 10 ms and more of CPU each to import."""


def imported_by(arguments: list[str]) -> set[str]:
    """Run a command in a new process; return the modules that it has imported at its end."""
    program = (
        "import json, sys; from automation.cli.main import invoke; "
        f"invoke({arguments!r}); print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(ended.stderr.splitlines()[-1]))


@pytest.mark.parametrize("command", ["get", "leaders", "list"])
def test_a_command_that_only_reads_the_cluster_loads_no_desired_state(command: str, tmp_path: Path) -> None:
    """The command runs to its request: the kubeconfig names a server that refuses the connection."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: none, user: {}}]\n"
        "contexts: [{name: none, context: {cluster: none, user: none}}]\ncurrent-context: none\n"
    )
    imported = imported_by([command, "--kubeconfig", str(kubeconfig)])
    assert "kubeapi.client" in imported, "the command ran"
    assert imported & SLOW_TO_IMPORT == set()


@pytest.mark.parametrize("arguments", [["--help"], ["made-up"], []], ids=["help", "unknown", "nothing"])
def test_the_overview_imports_no_command(arguments: list[str]) -> None:
    imported = imported_by(arguments)
    assert {f"automation.cli.{name}" for name in (*COMMANDS, *GROUPS)} & imported == set()
    assert imported & SLOW_TO_IMPORT == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_has_the_first_paragraph_of_each_commands_docstring(name: str) -> None:
    command = function_of(name)
    assert COMMANDS[name] == " ".join((inspect.getdoc(command) or "").partition("\n\n")[0].split())


def test_a_command_after_two_dashes_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--", "version"]) == 0
    assert invoke(["--", "crds", "--dialect", "made-up"]) == EXIT_USAGE
    assert "made-up" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["get"],
        ["describe", "chat"],
        ["history", "chat"],
        ["rollback", "chat"],
        ["approve", "chat"],
        ["logs", "chat"],
        ["top", "--once"],
        ["leaders"],
        ["preview", "--all"],
        ["drift"],
        ["list"],
        ["status", "chat"],
    ],
    ids=lambda words: words[0],
)
def test_a_context_of_the_kubeconfig_can_be_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("clusters: []\nusers: []\ncontexts: []\ncurrent-context: none\n")
    assert invoke([*words, "--kubeconfig", str(kubeconfig), "--context", "made-up"]) != 0
    assert "'made-up' in `contexts`" in capsys.readouterr().err


def test_help_fills_the_terminal_and_names_no_empty_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["deploy", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "[default: ()]" not in shown
    flowing = " ".join(shown.split())
    assert "A file may also have ModelRouters, ModelPools and LoRAAdapters, and is applied as it is." in flowing
    ragged = [line for line in shown.splitlines() if line.strip() == "ModelRouters, ModelPools and LoRAAdapters"]
    assert ragged == []


def test_the_end_of_a_command_searches_no_objects_for_cycles() -> None:
    program = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
        "sys.argv = ['herdsman', '--version']; from automation.cli.main import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-1] == "True"
