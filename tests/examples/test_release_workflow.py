"""The project's release workflow, run step by step: it builds, passes on, checks and publishes the artifacts.

The image for another architecture is built if its Pulumi CLI is in the cache of tools. CI compiles only the CLI for the
architecture of its machine, so the test builds one image there. `herdsman image build --architecture` fetches the other
CLI.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support import needs
from tests.support.ci.github import Workflow
from tests.support.ci.scripts import Machine, bare_environment
from tests.support.ci.stand_ins import write_gh, write_sudo
from tools.build import cached_for
from tools.image import requirements
from tools.image.build import own_architecture
from tools.toolchain import cache_dir
from tools.versions import TOOLS

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
OWN = own_architecture()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def architectures() -> list[str]:
    other = needs.OTHER_ARCHITECTURE
    return [OWN, other] if cached_for(TOOLS["pulumi"], other).is_file() else [OWN]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the files of this checkout, including uncommitted ones, as one commit.

    The commit has the default time of images, so that layers of other tests are reused.
    """
    copy = tmp_path / "repository"
    copy.mkdir()
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True).stdout
    existing = b"\0".join(name for name in names.split(b"\0") if name and (ROOT / os.fsdecode(name)).is_file())
    packed = subprocess.run(
        ["tar", "-C", str(ROOT), "--null", "-T", "-", "-c"], input=existing, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-C", str(copy), "-x"], input=packed, check=True)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "All"]):
        subprocess.run(["git", *command], cwd=copy, env={**os.environ, "GIT_COMMITTER_DATE": "@0 +0000"}, check=True)
    return copy


def release(repository: Path, tmp_path: Path, *, tag: str) -> Workflow:
    hosted = tmp_path / "of the hosted runner"
    hosted.mkdir()
    write_gh(hosted, tmp_path / "gh.calls")
    write_sudo(hosted, tmp_path / "sudo.calls")
    environment = bare_environment(PATH=f"{hosted}:{os.environ['PATH']}", HERDSMAN_CACHE=str(cache_dir()))
    environment["ARCHITECTURES"] = " ".join(architectures())
    machine = Machine(
        environment=environment,
        scratch=tmp_path / "scratch",
        secrets={"GITHUB_TOKEN": "the token of the job"},
        # One script builds two images. Each takes two minutes on two idle cores.
        timeout_s=1800,
    )
    github = {
        "event_name": "push",
        "ref": f"refs/tags/{tag}",
        "ref_name": tag,
        "repository": "example/herdsman",
        "event": {},
    }
    return Workflow(path=WORKFLOW, repository=repository, machine=machine, github=github)


@pytest.mark.soak
def test_a_tag_builds_and_publishes_a_release(repository: Path, tmp_path: Path) -> None:
    needs.require("image")
    done = release(repository, tmp_path, tag=f"v{VERSION}").run(tmp_path / "run")
    assert list(done) == ["build", "publish"]
    *_, installed = (tmp_path / "sudo.calls").read_text().splitlines()
    assert set(requirements.PROGRAMS) - {"dpkg-deb"} <= set(installed.split()), "the image build lacks a program"
    (publish,) = done["publish"]
    made = publish.place.workspace / "dist"
    images = [f"herdsman-{VERSION}-{architecture}" for architecture in architectures()]
    assert {file.name for file in made.iterdir()} == {
        f"herdsman-{VERSION}-py3-none-any.whl",
        f"herdsman_agent-{VERSION}-py3-none-any.whl",
        "herdsman.rb",
        "herdsman-agent.rb",
        f"herdsman-{VERSION}.cdx.json",
        *(f"{image}.tar.gz" for image in images),
        *(f"{image}.packages.json" for image in images),
        f"herdsman-{VERSION}-pulumi.go.mod",
        f"herdsman-{VERSION}.tgz",
        "SHA256SUMS",
    }
    sums = dict(reversed(line.split("  ")) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {file.name for file in made.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == digest
    # All files have the time of the commit, but a zip archive has no time before 1980.
    for name in ("herdsman", "herdsman_agent"):
        with zipfile.ZipFile(made / f"{name}-{VERSION}-py3-none-any.whl") as wheel:
            assert {member.date_time for member in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    for name in ("herdsman", "herdsman-agent"):
        wheel_name = f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        text = (made / f"{name}.rb").read_text()
        assert f"/releases/download/v{VERSION}/{wheel_name}" in text and sums[wheel_name] in text
    assert json.loads((made / f"herdsman-{VERSION}.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    for image in images:
        told = json.loads((made / f"{image}.packages.json").read_text())
        packages = {name for part in told["parts"] for name in part["packages"]}
        assert {"pulumi", "pydantic", "ca-certificates"} <= packages
        with tarfile.open(made / f"{image}.tar.gz") as archive:
            (manifest,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
            configuration = json.load(archive.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        assert configuration["created"] == "1970-01-01T00:00:00Z"
        assert configuration["architecture"] == image.rpartition("-")[2]
        assert manifest["RepoTags"][0].endswith(f"herdsman:{VERSION}")
    (call,) = (tmp_path / "gh.calls").read_text().splitlines()
    assert call.startswith(f"release create v{VERSION} dist/")
    assert "--draft --verify-tag" in call
    assert all(f"dist/{file.name}" in call for file in made.iterdir())


def test_a_tag_of_another_version_builds_nothing(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"tag v{VERSION}"):
        release(repository, tmp_path, tag="v99.0.0").run(tmp_path / "run")
    assert not (tmp_path / "run" / "build-0" / "workspace" / "dist").exists()
    assert not (tmp_path / "gh.calls").exists()


def test_the_workflow_builds_images_for_both_architectures() -> None:
    assert "${ARCHITECTURES:-amd64 arm64}" in (ROOT / ".ci" / "release").read_text()
    assert "ARCHITECTURES" not in WORKFLOW.read_text()


def test_only_the_job_that_publishes_may_write_and_it_runs_no_code_of_the_repository() -> None:
    said = yaml.safe_load(WORKFLOW.read_text())
    assert said["permissions"] == {}
    jobs = said["jobs"]
    assert jobs["build"]["permissions"] == {"contents": "read"}
    assert jobs["publish"]["permissions"] == {"contents": "write"}
    assert not any("checkout" in step.get("uses", "") for step in jobs["publish"]["steps"])
