"""The CI files of the static fleet's example, run step by step with a wheel that is built from this checkout.

pip uses no package index: Herdsman's dependencies come from this environment. `tests/support/ci` runs the steps, and
lists what it replaces.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

import pytest
import yaml

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.ci.github import JobRun, Workflow
from tests.support.ci.gitlab import Pipeline
from tests.support.ci.scripts import Machine, bare_environment
from tests.support.ci.stand_ins import write_gh, write_pulumi, write_python
from tests.support.controlplane import Api
from tests.support.packages import PACKAGES

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "09-static-fleet"
SOURCES = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the command in the example's README, in a copy, since a build leaves files behind."""
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
    """Return environment variables that keep pip from using an index."""
    asked = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    return {**bare_environment(), **asked, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


@pytest.fixture
def programs(tmp_path: Path, pulumi_cli: Path) -> Path:
    """A folder with the programs that the image or the actions of a job provide."""
    folder = tmp_path / "programs"
    folder.mkdir()
    write_python(folder)
    write_pulumi(folder)
    return folder


@pytest.fixture
def machine(tmp_path: Path, kubeconfig: Path, pulumi_cli: Path) -> Machine:
    state = tmp_path / "state"
    state.mkdir()
    secrets = {
        "KUBECONFIG": kubeconfig.read_text(),
        "FLEET_SSH_KEY": "the key of the test\nits second line is longer",
        "PULUMI_CONFIG_PASSPHRASE": "the passphrase of the test",
        "GITHUB_TOKEN": "the token of the job",
        "NOTE_TOKEN": "the token that may comment",
    }
    hidden = tmp_path / "of the hosted runner"
    hidden.mkdir()
    write_gh(hidden, tmp_path / "gh.calls")
    environment = {
        **_offline(),
        "PATH": f"{hidden}:{os.environ['PATH']}",
        "HERDSMAN_CACHE": str(tmp_path / "cache"),
        "PULUMI_BACKEND_URL": f"file://{state}",
    }
    return Machine(environment=environment, scratch=tmp_path / "scratch", secrets=secrets)


@pytest.fixture
def repository(tmp_path: Path, wheels: Path, api: Api, machine: Machine, programs: Path) -> Iterator[tuple[Path, str]]:
    """A repository as the CI files expect it: `fleet/` with its stack, manifests beside it, and `cluster/`."""
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
        passphrase = {"PULUMI_CONFIG_PASSPHRASE": machine.secrets["PULUMI_CONFIG_PASSPHRASE"]}
        home = {"HOME": str(tmp_path / "a home"), "PULUMI_HOME": str(tmp_path / "a home" / "pulumi")}
        subprocess.run(
            [programs / "pulumi", "stack", "init", "prod", "--non-interactive"],
            cwd=root / "fleet",
            env={**machine.environment, **passphrase, **home, "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            check=True,
        )
        yield root, namespace


def on_github(repository: Path, machine: Machine, event: str, *, head: str = "example/fleet") -> Workflow:
    request = {"number": 7, "head": {"repo": {"full_name": head}}}
    github = {
        "event_name": event,
        "ref": "refs/pull/7/merge" if event == "pull_request" else "refs/heads/main",
        "repository": "example/fleet",
        "event": {"pull_request": request} if event == "pull_request" else {},
    }
    return Workflow(
        path=EXAMPLE / "ci" / "github-actions.yaml",
        repository=repository,
        machine=machine,
        variables={"PULUMI_BACKEND_URL": machine.environment["PULUMI_BACKEND_URL"]},
        github=github,
    )


def deployments(client: KubeClient, namespace: str) -> list[str]:
    return [each["metadata"]["name"] for each in client.list(kinds.DEPLOYMENTS, namespace)["items"]]


def test_the_requirements_name_the_wheel_of_this_version(wheels: Path) -> None:
    (wheel,) = wheels.glob("*.whl")
    named = [
        line
        for line in (EXAMPLE / "project" / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert named == [f"./wheels/{wheel.name}"], (
        "pip would look for a name alone on an index, where anybody may register it"
    )


def assert_herdsman_comes_from_the_wheel(run: JobRun) -> None:
    fleet = run.place.workspace / "fleet"
    where = "import program, components.downloader as c; print(program.__file__, c.__file__)"
    python = fleet / ".venv" / "bin" / "python"
    found = subprocess.run([python, "-c", where], cwd=run.place.root, capture_output=True, text=True, check=True)
    assert all(path.startswith(str(fleet / ".venv")) for path in found.stdout.split()), found.stdout


def test_a_request_on_github_gets_a_preview_as_a_comment(
    repository: tuple[Path, str], machine: Machine, client: KubeClient, tmp_path: Path
) -> None:
    root, namespace = repository
    done = on_github(root, machine, "pull_request").run(tmp_path / "request")
    assert set(done) == {"preview"}
    (preview,) = done["preview"]
    assert preview.steps[-3:] == ["Install Herdsman", "Preview", "Comment"]
    assert preview.environment["PULUMI_SKIP_CHECKPOINTS"] == "true"
    assert (Path(preview.environment["PULUMI_HOME"]) / "logs").is_file(), "the CLI wrote no logs"
    assert_herdsman_comes_from_the_wheel(preview)
    comment = (preview.place.temporary / "comment.md").read_text()
    assert "### The static fleet" in comment and "Deployment llmkube/embeddings/deployment create" in comment
    edit, new = (tmp_path / "gh.calls").read_text().splitlines()
    assert edit.startswith("pr comment 7 --repo example/fleet --edit-last --body-file ")
    assert new == f"pr comment 7 --repo example/fleet --body-file {preview.place.temporary}/comment.md"
    assert (preview.place.temporary / "kubeconfig").stat().st_mode & 0o077 == 0, "others can read the kubeconfig"
    assert deployments(client, namespace) == []


def test_a_merge_on_github_makes_the_fleet(
    repository: tuple[Path, str], machine: Machine, client: KubeClient, tmp_path: Path
) -> None:
    root, namespace = repository
    done = on_github(root, machine, "push").run(tmp_path / "push")
    assert set(done) == {"up"}
    (up,) = done["up"]
    assert up.steps[-2:] == ["Install Herdsman", "Up"]
    assert_herdsman_comes_from_the_wheel(up)
    assert deployments(client, namespace) == ["embeddings"]
    assert (Path(up.environment["PULUMI_HOME"]) / "logs").is_file(), "the CLI wrote no logs"
    key = up.place.home / ".ssh" / "fleet"
    assert key.read_text() == machine.secrets["FLEET_SSH_KEY"] + "\n"
    for secret in (key, up.place.temporary / "kubeconfig"):
        assert secret.stat().st_mode & 0o077 == 0, f"{secret.name} can be read by others"


def test_a_request_from_a_fork_starts_no_job(repository: tuple[Path, str], machine: Machine, tmp_path: Path) -> None:
    root, _ = repository
    assert on_github(root, machine, "pull_request", head="somebody/fleet").run(tmp_path / "fork") == {}


class Notes(BaseHTTPRequestHandler):
    """A replacement for GitLab's API for notes, which stores each posted note."""

    posted: ClassVar[list[tuple[str, str | None, str]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.posted.append((self.path, self.headers["PRIVATE-TOKEN"], parse_qs(body)["body"][0]))
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def gitlab() -> Iterator[str]:
    Notes.posted.clear()
    server = HTTPServer(("127.0.0.1", 0), Notes)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api/v4"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def variables(machine: Machine, programs: Path, kubeconfig: Path, tmp_path: Path) -> dict[str, str]:
    """The variables that GitLab sets in each job of the project."""
    key, home = tmp_path / "key", tmp_path / "home"
    key.write_text(machine.secrets["FLEET_SSH_KEY"])
    home.mkdir()
    return {
        "PATH": f"{programs}:{machine.environment['PATH']}",
        "HOME": str(home),
        "CI_PROJECT_ID": "3",
        "CI_DEFAULT_BRANCH": "main",
        "KUBECONFIG": str(kubeconfig),
        "FLEET_SSH_KEY": str(key),
        "NOTE_TOKEN": machine.secrets["NOTE_TOKEN"],
        "PULUMI_CONFIG_PASSPHRASE": machine.secrets["PULUMI_CONFIG_PASSPHRASE"],
    }


def on_gitlab(machine: Machine, variables: dict[str, str], **event: str) -> Pipeline:
    return Pipeline(path=EXAMPLE / "ci" / "gitlab-ci.yaml", machine=machine, variables={**variables, **event})


def test_a_request_on_gitlab_gets_a_preview_as_a_note(
    repository: tuple[Path, str], machine: Machine, variables: dict[str, str], client: KubeClient, gitlab: str
) -> None:
    root, namespace = repository
    event = {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_IID": "5", "CI_API_V4_URL": gitlab}
    request = on_gitlab(machine, variables, **event)
    assert set(request.jobs()) == {"preview"}
    request.run("preview", root)
    ((path, token, note),) = Notes.posted
    assert (path, token) == ("/api/v4/projects/3/merge_requests/5/notes", machine.secrets["NOTE_TOKEN"])
    assert "### The static fleet" in note and "Deployment llmkube/embeddings/deployment create" in note
    assert deployments(client, namespace) == []


def test_a_merge_on_gitlab_makes_the_fleet(
    repository: tuple[Path, str], machine: Machine, variables: dict[str, str], client: KubeClient
) -> None:
    root, namespace = repository
    merged = on_gitlab(machine, variables, CI_PIPELINE_SOURCE="push", CI_COMMIT_BRANCH="main")
    assert set(merged.jobs()) == {"up"}
    merged.run("up", root)
    assert deployments(client, namespace) == ["embeddings"]
    assert (root / ".pulumi-home" / "logs").is_file(), "the CLI wrote no logs"
    key = Path(variables["HOME"]) / ".ssh" / "fleet"
    assert key.read_text() == machine.secrets["FLEET_SSH_KEY"]
    assert key.stat().st_mode & 0o077 == 0, "others can read the key"


def test_a_branch_on_gitlab_starts_no_job(machine: Machine) -> None:
    branch = {"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": "feature", "CI_DEFAULT_BRANCH": "main"}
    assert Pipeline(path=EXAMPLE / "ci" / "gitlab-ci.yaml", machine=machine, variables=branch).jobs() == {}
