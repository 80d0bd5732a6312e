"""The options of an installed agent: independent of the caller's directory and environment, and without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from agent.steps.machine import Facts
from automation.cli import agent_service
from automation.cli.agent_installation import Installation, install_steps
from automation.cli.agent_options import OptionsWrong, settled
from automation.cli.agent_run import run_command
from automation.cli.main import UsageError


def test_every_option_is_kept_in_one_way_and_paths_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["-n", "a", "--namespace", "b", "--host", "mac-1", "--http-port", "-1", "--tls-cert", "c.crt"]
    given += ["--tls-key=c.key", "--kubeconfig", "kube", "--label", "x=1", "--log-format", "json"]
    options = settled(run_command(), given, home="/home/eva", environment={})
    assert options.arguments == (
        "--host=mac-1",
        "--store=/home/eva/.local/share/herdsman/agent",
        f"--kubeconfig={tmp_path}/kube",
        "--namespace=a",
        "--namespace=b",
        "--http-port=-1",
        f"--tls-cert={tmp_path}/c.crt",
        f"--tls-key={tmp_path}/c.key",
        "--keep-processes",
        "--label=x=1",
        "--log-format=json",
    )
    assert options.files == (f"{tmp_path}/kube", f"{tmp_path}/c.crt", f"{tmp_path}/c.key")
    assert not options.has_api and options.host == "mac-1"
    # The result is stable: the options of an installed agent do not change when they are settled again.
    assert settled(run_command(), options.arguments, home="/elsewhere", environment={}) == options
    assert run_command().make_context("run", list(options.arguments)).params["http_port"] == -1


def test_a_kubeconfig_is_found_or_asked_for(tmp_path: Path) -> None:
    def found(environment: dict[str, str], *given: str) -> str:
        arguments = settled(
            run_command(), ["--host", "a", *given], home=str(tmp_path), environment=environment
        ).arguments
        return next((each for each in arguments if each.startswith("--kubeconfig")), "")

    assert found({"KUBECONFIG": "/k"}) == "--kubeconfig=/k"
    with pytest.raises(OptionsWrong, match=r"no \.kube/config"):
        found({})
    with pytest.raises(OptionsWrong, match="several"):
        found({"KUBECONFIG": "/k:/l"})
    assert found({}, "--plan-source", "http") == ""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").touch()
    assert found({}) == f"--kubeconfig={tmp_path}/.kube/config"


@pytest.mark.parametrize("given", [["--hots", "a"], ["--host"], ["--host", "a", "--http-port", "many"], []])
def test_wrong_options_are_refused_at_the_installation_already(given: list[str]) -> None:
    with pytest.raises(UsageError):
        settled(run_command(), given, home="/home/eva", environment={})


def test_variables_that_look_like_secrets_are_refused() -> None:
    assert agent_service._environment(["HTTPS_PROXY=http://p:1", "EMPTY="]) == {
        "HTTPS_PROXY": "http://p:1",
        "EMPTY": "",
    }
    for pair in ("HF_TOKEN=x", "AWS_SECRET_ACCESS_KEY=x", "db_password=1", "HTTP_PROXY=http://me:pw@p:1", "NOVALUE"):
        with pytest.raises(typer.BadParameter):
            agent_service._environment([pair])


def test_the_same_steps_install_and_upgrade_and_only_another_version_changes_the_service() -> None:
    installed = Installation(
        name="herdsman-agent",
        user="eva",
        home="/home/eva",
        host="mac-1",
        store="/srv/models",
        arguments=("--host=mac-1",),
    )
    service = installed.service(("/opt/herdsman/bin/herdsman",), "1.0")
    assert service.argv == ("/opt/herdsman/bin/herdsman", "agent", "run", "--host=mac-1")
    assert service.keep_children and service.user == "eva" and service.environment["HOME"] == "/home/eva"
    assert service.mark != installed.service(("/opt/herdsman/bin/herdsman",), "1.1").mark
    linux, mac = Facts("linux", 0, "root", "/root"), Facts("darwin", 0, "root", "/var/root")
    on_linux, on_mac = (
        [step.title for step in install_steps(installed, facts, program=("/opt/herdsman/bin/herdsman",), version="1.0")]
        for facts in (linux, mac)
    )
    assert on_linux[0] == "systemd runs" and "unit /etc/systemd/system/herdsman-agent.service" in on_linux
    assert on_mac[0] == "launchd runs" and "plist /Library/LaunchDaemons/dev.herdsman.agent.plist" in on_mac
    assert "options /Library/Application Support/Herdsman/herdsman-agent.json" in on_mac
    assert on_linux[-1] == on_mac[-1] == "agent of host mac-1 answers"
