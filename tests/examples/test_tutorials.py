"""Each tutorial is run as a reader would run it: its commands run in one shell and print the output of the page."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.server.host_facts import own_address
from automation.cli.main import invoke
from automation.local.folders import LocalFolders
from automation.local.instance import Settings
from kubeapi.client import KubeClient
from tests.support.ci.stand_ins import write_pulumi, write_python
from tests.support.controlplane import Api, tool_or_skip
from tests.support.documents import Shell, run_page
from tests.support.file_server import FileServer, serving
from tests.support.loop import forget_hosts, grant_loop_rights, install_crds, loop_process
from tests.support.packages import PACKAGES
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model
from tools.toolchain import cache_dir

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
SOURCES = (*PACKAGES, "examples")


@pytest.fixture
def reader(tmp_path: Path) -> dict[str, str]:
    """The environment of a reader with an empty home and `kubectl` on PATH. The cache of built programs is kept."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    (programs / "kubectl").symlink_to(tool_or_skip("kubectl"))
    kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HERDSMAN_CACHE": str(cache_dir()),
        # Without it, the demo of the README downloads a model where the network allows that.
        "HERDSMAN_DEMO_MODEL": "tiny",
        # make must not rebuild the environment of the tests, also if a file that it was made from is newer.
        "MAKEFLAGS": "--assume-old=.venv/.installed",
    }


@pytest.fixture
def demo(reader: dict[str, str], pulumi_cli: Path, llama_server: Path) -> Iterator[None]:
    """Stop the demo that a page has started with `make demo`, also if the page failed."""
    yield
    subprocess.run([sys.executable, "-m", "examples.demo", "down"], cwd=ROOT, env=reader, timeout=120, check=True)


@pytest.mark.usefixtures("demo")
def test_from_nothing_to_a_chat_on_a_cluster(reader: dict[str, str]) -> None:
    with Shell(ROOT, reader) as shell:
        outcome = run_page(TUTORIALS / "a-cluster.md", shell)
    assert outcome.skipped == []


@pytest.mark.usefixtures("demo")
def test_the_commands_of_the_readme(reader: dict[str, str]) -> None:
    with Shell(ROOT, reader) as shell:
        outcome = run_page(ROOT / "README.md", shell)
    assert {step.skip for step in outcome.skipped} == {
        "the demo installs the same",
        "needs a registry",
        "the tutorial of one machine runs these",
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout, since a build of the wheel leaves files behind."""
    copy = tmp_path / "checkout"
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture
def pipeline(reader: dict[str, str], tmp_path: Path, kubeconfig: Path, pulumi_cli: Path) -> dict[str, str]:
    """The reader with a cluster, the Pulumi CLI with a language host for Python, and pip without an index."""
    programs = tmp_path / "programs"
    write_python(programs)
    write_pulumi(programs)
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    return {
        **reader,
        **offline,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "KUBECONFIG": str(kubeconfig),
        # Keep the plugins of the project's environment in the test's folder.
        "HERDSMAN_CACHE": str(tmp_path / "cache"),
    }


def test_a_static_fleet_from_ci(pipeline: dict[str, str], checkout: Path, api: Api) -> None:
    try:
        with Shell(checkout, pipeline) as shell:
            outcome = run_page(TUTORIALS / "a-static-fleet.md", shell)
    finally:
        api.delete("/api/v1/namespaces/prod")
    assert outcome.skipped == []
    workflow = Path(pipeline["HOME"], "services/.github/workflows/fleet.yaml").read_text()
    assert set(yaml.safe_load(workflow)["jobs"]) == {"preview", "up"}
    assert "../cluster" not in workflow and "pulumi preview --stack prod" in workflow


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FileServer]:
    """A replacement for Hugging Face, which serves a tiny model as the file that the page names."""
    body = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    with serving(body) as server:
        yield server


@pytest.fixture
def mac(
    reader: dict[str, str],
    hub: FileServer,
    control_plane: LocalCluster,
    pulumi_cli: Path,
    llama_server: Path,
    tmp_path: Path,
) -> Iterator[dict[str, str]]:
    """The reader with a cluster and its loop. AGENT_OPTIONS set values that the agent of a Mac finds by itself."""
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(administrator)
    forget_hosts(administrator)
    rights = grant_loop_rights(administrator, control_plane, tmp_path / "loop.kubeconfig")
    credentials = tmp_path / "credentials"
    credentials.write_text(f"HF_ENDPOINT={hub.root}\n")
    credentials.chmod(0o600)
    options = [
        *("--listen", own_address(), "--allowed-remote-hosts", "127.0.0.0/8", "--credentials", str(credentials)),
    ]
    with loop_process(rights, tmp_path / "loop", start=False) as loop:
        loop.environment["HERDSMAN_HUB_URL"] = hub.root
        loop.start()
        yield {
            **reader,
            "PATH": f"{Path(sys.executable).parent}:{reader['PATH']}",
            "KUBECONFIG": str(control_plane.kubeconfig),
            "AGENT_OPTIONS": shlex.join(options),
        }
    invoke(["host", "revoke", "mac-studio", "--kubeconfig", str(control_plane.kubeconfig)])
    Api(control_plane).delete("/api/v1/namespaces/office")
    forget_hosts(administrator)
    administrator.close()


def test_a_mac(mac: dict[str, str], hub: FileServer) -> None:
    with Shell(ROOT, mac) as shell:
        outcome = run_page(TUTORIALS / "a-mac.md", shell)
    reasons = [str(step.skip).partition(" ")[0] for step in outcome.skipped]
    assert reasons == ["Homebrew", "pip", *["launchd"] * 4]
    assert any(request.path.endswith("/Qwen3-0.6B-Q8_0.gguf") for request in hub.requests)


@pytest.fixture
def one_machine(
    reader: dict[str, str], hub: FileServer, pulumi_cli: Path, llama_server: Path
) -> Iterator[tuple[dict[str, str], int]]:
    """The reader with a free port, and with the hub in the place of Hugging Face."""
    machine = {**reader, "PATH": f"{Path(sys.executable).parent}:{reader['PATH']}"}
    folders, port = LocalFolders.of_user(machine), free_port()
    folders.make()
    (folders.config / "credentials").write_text(f"HF_ENDPOINT={hub.root}\n")
    (folders.config / "credentials").chmod(0o600)
    Settings(listen=f"127.0.0.1:{port}", allowed_remote_hosts=("127.0.0.0/8",)).write(folders.settings)
    yield machine, port
    subprocess.run([sys.executable, "-m", "automation.cli", "local", "down"], env=machine, timeout=180, check=True)


def test_one_machine(one_machine: tuple[dict[str, str], int], hub: FileServer, tmp_path: Path) -> None:
    machine, port = one_machine
    page = tmp_path / "one-machine.md"
    page.write_text((TUTORIALS / "one-machine.md").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    with Shell(ROOT, machine) as shell:
        outcome = run_page(page, shell)
    assert [step.command for step in outcome.skipped] == ["herdsman local up --at-login"]
    assert any(request.path.endswith("/Qwen3-0.6B-Q8_0.gguf") for request in hub.requests)
