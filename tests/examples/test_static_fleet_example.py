"""The example of a static fleet, applied by the real engine with plugins from PATH, in two namespaces and over SSH.

A tiny model, the test's host and its namespaces are filled in. The rest of the example is unchanged. The CI files must
be valid YAML, pin versions, print no secret, and use only existing commands and flags.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pytest
import yaml

from automation.cli.provider import plugin_folder
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.__main__ import register_fleet
from tests.engine.stacks import Stack
from tests.support.sshd import sshd
from tools.tiny_model import write_tiny_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "09-static-fleet"
CI = sorted((EXAMPLE / "ci").glob("*.yaml"))


@pytest.fixture
def namespaces(kubeconfig: Path, namespace: str) -> Iterator[tuple[KubeClient, str, str]]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    other = f"{namespace}-search"
    client.create(kinds.NAMESPACES, None, {"metadata": {"name": other}})
    yield client, namespace, other
    client.delete(kinds.NAMESPACES, None, other)
    client.close()


@pytest.mark.soak
@pytest.mark.hosts
def test_the_example_is_made_and_destroyed(
    tmp_path: Path,
    namespaces: tuple[KubeClient, str, str],
    kubeconfig: Path,
    pulumi_cli: Path,
    llama_server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, chat, search = namespaces
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    shutil.copytree(EXAMPLE, tmp_path / "example")
    root = tmp_path / "example" / "project"
    for name, old, new in (
        ("search.yaml", "namespace: search", f"namespace: {search}"),
        (
            "desk.yaml",
            yaml.safe_load((EXAMPLE / "desk.yaml").read_text().partition("---")[0])["spec"]["source"],
            f"file://{tiny}",
        ),
        ("desk.yaml", "contextSize: 4096", "contextSize: 256"),
    ):
        path = tmp_path / "example" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    with monkeypatch.context() as patched:
        patched.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
        folder = plugin_folder()
    config = yaml.safe_load((root / "Pulumi.prod.yaml").read_text())["config"]
    config["herdsman:namespace"] = chat
    with sshd(tmp_path / "host", binaries=[llama_server]) as server:
        host = config["herdsman:hosts"]["studio"]
        host |= {"address": server.address, "port": server.port, "user": server.user, "store": str(server.store)}
        host["allowRoot"] = server.user == "root"
        host["identityFile"] = str(server.user_key)
        (root / "known_hosts").write_text(f"[{server.address}]:{server.port} {server.host_key}\n")
        command = auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True)
        environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)}
        stack = Stack(tmp_path / "stack", command, environment)
        values = {k: auto.ConfigValue(v if isinstance(v, str) else json.dumps(v)) for k, v in config.items()}
        stack.select(lambda: register_fleet(root)).set_all_config(values)
        assert "On the host of" in stack.preview(lambda: register_fleet(root)).text
        stack.up(lambda: register_fleet(root))
        assert {d["metadata"]["name"] for d in client.list(kinds.DEPLOYMENTS, chat)["items"]} == {"chat"}
        assert {d["metadata"]["name"] for d in client.list(kinds.DEPLOYMENTS, search)["items"]} == {"embeddings"}
        assert stack.state()["llmkube/desk/process"]["outputs"]["phase"] == "Ready"
        stack.destroy()
        for namespace in (chat, search):
            assert not client.list(kinds.DEPLOYMENTS, namespace)["items"]
            assert client.list(kinds.CLAIMS, namespace)["items"], "the claims with the models stay"


def test_the_project_runs_the_program_of_the_installed_package() -> None:
    assert yaml.safe_load((EXAMPLE / "project" / "Pulumi.yaml").read_text())["main"] == "__main__.py"
    done = subprocess.run(
        [sys.executable, EXAMPLE / "project" / "__main__.py"], capture_output=True, text=True, check=False
    )
    # Without an engine the program has no config, and reports that first.
    assert "herdsman:manifests: names no file" in done.stderr, done.stderr


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name)
def test_a_ci_file_is_sound(path: Path) -> None:
    text = path.read_text()
    parsed: dict[Any, Any] = yaml.safe_load(text)
    assert {"github-actions": "jobs", "gitlab-ci": "up"}[path.stem] in parsed
    for used in re.findall(r"uses: (.+)", text):
        assert re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", used), f"{used} is not pinned to a commit"
    if "jobs" in parsed:
        assert parsed["permissions"] == {}
        for job in parsed["jobs"].values():
            assert all(right == "read" or name == "pull-requests" for name, right in job["permissions"].items())
    assert not re.search(r"set -x|echo.*(SECRET|KUBECONFIG|PASSPHRASE|TOKEN|SSH_KEY)", text)
    scripts = _scripts(parsed)
    assert not any("secrets." in script for script in scripts), "secrets come by the environment, not into a script"
    for script in scripts:
        subprocess.run(["bash", "-n", "-c", script], check=True)


def _scripts(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [v for k, v in value.items() if k in ("run", "script", "before_script")]
        lines = ["\n".join(v) if isinstance(v, list) else str(v) for v in own]
        return lines + [script for v in value.values() for script in _scripts(v)]
    return [script for v in value for script in _scripts(v)] if isinstance(value, list) else []


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name)
def test_commands_of_a_ci_file_exist_with_their_flags(path: Path, pulumi_cli: Path) -> None:
    script = "\n".join(_scripts(yaml.safe_load(path.read_text())))
    asked = {
        (name, command, tuple(re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", rest)))
        for name, command, rest in re.findall(
            r"(?m)(?:^|[\s(/])(herdsman|pulumi) ((?:provider )?[a-z]+)([^|>)\n]*)", script
        )
    }
    assert {command for _, command, _ in asked} == {"preview", "up", "provider path"}
    for name, command, flags in asked:
        runner = [sys.executable, "-m", "automation.cli"] if name == "herdsman" else [str(pulumi_cli)]
        done = subprocess.run([*runner, *command.split(), "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for flag in flags:
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", done.stdout), f"{name} {command} {flag}"
