"""The frame of the command line: help, exit codes, and that a command imports only itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from automation.cli.main import COMMANDS, EXIT_USAGE, GROUPS, invoke


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


def test_a_value_that_makes_no_sense_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--state", "/not/a/url"]) == EXIT_USAGE
    assert "state" in capsys.readouterr().err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["version"]) == 0
    assert capsys.readouterr().out.strip()


def test_the_agent_brings_neither_pulumi_nor_the_crds() -> None:
    program = (
        "import sys; from automation.cli.main import invoke; invoke(['agent', 'run', '--help']); "
        "sys.exit(any(name.split('.')[0] in ('pulumi', 'grpc', 'components') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0
