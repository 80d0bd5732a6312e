"""The CI files of the static fleet's example, run step by step from a wheel that is built from this checkout.

No package index is asked: what Herdsman depends on comes from this environment. A shell stands in for the CI's runner.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import needs
from tests.support.controlplane import Api

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "09-static-fleet"
SOURCES = ("program", "components", "automation", "agent", "kubeapi", "tools", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel by the command of the example's README, in a copy, since a build leaves files behind."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout)
    line = next(line for line in (EXAMPLE / "README.md").read_text().splitlines() if "pip wheel" in line)
    command = shlex.split(line.partition("#")[0])
    made = checkout / command[command.index("--wheel-dir") + 1]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=checkout, env=_offline(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return made


def _offline() -> dict[str, str]:
    """What keeps pip from asking an index: the requirements must be enough without one."""
    asked = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    return {**os.environ, **asked, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


@pytest.fixture
def checkout(tmp_path: Path, wheels: Path, api: Api) -> Iterator[tuple[Path, str]]:
    """A repository as the CI files describe it: `fleet/`, manifests beside it, and `cluster/`."""
    with api.namespace(kept=True) as namespace:
        root = tmp_path / "repository"
        shutil.copytree(EXAMPLE / "project", root / "fleet")
        shutil.copytree(wheels, root / "fleet" / "wheels")
        text = (EXAMPLE / "search.yaml").read_text()
        (root / "search.yaml").write_text(text.replace("namespace: search", f"namespace: {namespace}"))
        settings = root / "fleet" / "Pulumi.prod.yaml"
        said = yaml.safe_load(settings.read_text())
        del said["config"]["herdsman:hosts"]
        said["config"]["herdsman:namespace"] = namespace
        settings.write_text(yaml.safe_dump(said))
        (root / "cluster").mkdir()
        (root / "cluster" / "chat.yaml").write_text((EXAMPLE / "chat.yaml").read_text())
        yield root, namespace


@pytest.fixture
def runner(
    tmp_path: Path, checkout: tuple[Path, str], kubeconfig: Path, pulumi_cli: Path
) -> Callable[[str, dict[str, str]], dict[str, str]]:
    """Run a step's script as a runner does, and give the environment of the next one."""
    root, _ = checkout
    shims, home, state = tmp_path / "shims", tmp_path / "runner-home", tmp_path / "state"
    for folder in (shims, home, state, tmp_path / "temporary"):
        folder.mkdir()
    # A virtual environment made by a step finds what Herdsman depends on, and not this checkout.
    packages = sysconfig.get_path("purelib")
    shim = shims / "python"
    shim.write_text(
        f'#!/bin/sh\n{shlex.quote(sys.executable)} "$@" || exit\n'
        f"for site in .venv/lib/python*/site-packages; do echo {shlex.quote(packages)} > $site/environment.pth; done\n"
    )
    shim.chmod(0o755)
    base = {
        **_offline(),
        "PATH": f"{shims}:{pulumi_cli.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "HERDSMAN_CACHE": str(tmp_path / "cache"),
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": "of the test",
        "KUBECONFIG_TEXT": kubeconfig.read_text(),
        "SSH_KEY": "none",
        "RUNNER_TEMP": str(tmp_path / "temporary"),
        "GITHUB_PATH": str(tmp_path / "path"),
        "GITHUB_ENV": str(tmp_path / "environment"),
        "CI_PROJECT_DIR": str(root),
    }
    base.pop("PYTHONPATH", None)

    def run(script: str, more: dict[str, str]) -> dict[str, str]:
        environment = {**base, **more}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=root if "CI_ON_GITLAB" in more else root / "fleet",
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        added = Path(base["GITHUB_PATH"]), Path(base["GITHUB_ENV"])
        paths, variables = (each.read_text().splitlines() if each.exists() else [] for each in added)
        return {
            **more,
            "PATH": ":".join([*paths, base["PATH"]]),
            **dict(line.split("=", 1) for line in variables),
        }

    return run


def _steps(job: str) -> tuple[dict[str, str], dict[str, str]]:
    """Give the variables and the scripts of a job on GitHub, by the steps' names."""
    workflow: dict[str, Any] = yaml.safe_load((EXAMPLE / "ci" / "github-actions.yaml").read_text())
    variables = {name: value for name, value in workflow["env"].items() if "${{" not in value}
    return variables, {step["name"]: step["run"] for step in workflow["jobs"][job]["steps"] if "run" in step}


def test_the_requirements_name_the_wheel_of_this_version(wheels: Path) -> None:
    (wheel,) = wheels.glob("*.whl")
    named = [
        line
        for line in (EXAMPLE / "project" / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert named == [f"./wheels/{wheel.name}"], (
        "a name alone would be looked for on an index, where anybody may take it"
    )


def test_a_step_of_github_installs_the_wheel(
    checkout: tuple[Path, str], runner: Callable[[str, dict[str, str]], dict[str, str]]
) -> None:
    root, _ = checkout
    variables, steps = _steps("up")
    after = runner(steps["Install Herdsman"], variables)
    assert after["PULUMI_SKIP_CHECKPOINTS"] == "true"
    assert (Path(after["PULUMI_HOME"]) / "logs").is_file()
    where = "import program, components.downloader as c; print(program.__file__, c.__file__)"
    python = root / "fleet" / ".venv" / "bin" / "python"
    found = subprocess.run([python, "-c", where], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert all(path.startswith(str(root / "fleet" / ".venv")) for path in found), found


def test_the_steps_on_github_preview_and_make_a_fleet(
    checkout: tuple[Path, str],
    runner: Callable[[str, dict[str, str]], dict[str, str]],
    client: KubeClient,
    tmp_path: Path,
) -> None:
    needs.require("pulumi-language-python")
    _, namespace = checkout
    variables, steps = _steps("preview")
    after = runner(steps["Install Herdsman"], variables)
    runner("pulumi --non-interactive stack init prod", after)
    runner(steps["Preview"], after)
    comment = (tmp_path / "temporary" / "comment.md").read_text()
    assert "### The static fleet" in comment and "Deployment llmkube/embeddings/deployment create" in comment
    assert not client.list(kinds.DEPLOYMENTS, namespace)["items"]
    _, steps = _steps("up")
    runner(steps["Up"], after)
    assert [each["metadata"]["name"] for each in client.list(kinds.DEPLOYMENTS, namespace)["items"]] == ["embeddings"]
    assert (Path(after["PULUMI_HOME"]) / "logs").is_file(), "the CLI wrote no logs"


def test_the_jobs_on_gitlab_preview_and_make_a_fleet(
    checkout: tuple[Path, str],
    runner: Callable[[str, dict[str, str]], dict[str, str]],
    client: KubeClient,
    kubeconfig: Path,
    tmp_path: Path,
) -> None:
    needs.require("pulumi-language-python")
    root, namespace = checkout
    pipeline: dict[str, Any] = yaml.safe_load((EXAMPLE / "ci" / "gitlab-ci.yaml").read_text())
    before = "\n".join(pipeline[".pulumi"]["before_script"])
    key = tmp_path / "key"
    key.write_text("none")
    variables = {
        **{k: v.replace("$CI_PROJECT_DIR", str(root)) for k, v in pipeline[".pulumi"]["variables"].items()},
        "CI_ON_GITLAB": "1",
        "KUBECONFIG": str(kubeconfig),
        "FLEET_SSH_KEY": str(key),
    }
    preview = [line for line in pipeline["preview"]["script"] if not line.startswith("curl")]
    runner("\n".join([before, "pulumi --non-interactive stack init prod", *preview]), variables)
    assert "### The static fleet" in (root / "fleet" / "comment.md").read_text()
    shutil.rmtree(root / "fleet" / ".venv")
    runner("\n".join([before, *pipeline["up"]["script"]]), variables)
    assert [each["metadata"]["name"] for each in client.list(kinds.DEPLOYMENTS, namespace)["items"]] == ["embeddings"]
    assert (root / ".pulumi-home" / "logs").is_file(), "the CLI wrote no logs"
