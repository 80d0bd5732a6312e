"""Programs and rights that tests need beyond `make setup`: how each is found, which tests it affects, how to get it.

`suite_run` prints what is missing before the tests start. Fixtures call `require`, so that skips give the same text.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import controlplane
from tests.support.browser import chromium
from tools.build import cached_for
from tools.image import requirements as image_requirements
from tools.image.build import own_architecture
from tools.node import requirements
from tools.toolchain import ToolMissing, locate
from tools.versions import TOOLS

OTHER_ARCHITECTURE = "arm64" if own_architecture() == "amd64" else "amd64"
"""An architecture for which images are built, other than that of this machine."""
SYSTEMD = Path("/lib/systemd/systemd")
SBIN = "/usr/sbin:/usr/local/sbin"
"""Folders with servers; they are often not on PATH."""


@dataclass(frozen=True)
class Need:
    """A program or a right that some tests need."""

    name: str
    lack: Callable[[], str]
    """Returns what is missing; empty when nothing is."""
    skipped: str
    """The tests that do not run without it."""
    packages: tuple[str, ...] = ()
    """The Debian packages that contain it."""
    other_command: str = ""
    """How to get it where no package contains it."""

    @property
    def command(self) -> str:
        """The command that installs it."""
        return self.other_command or f"apt-get install {' '.join(self.packages)}"


def program(name: str, path: str = "") -> str | None:
    """Find a program on PATH or in the folders of `path`; servers of the system are often not on PATH."""
    return shutil.which(name) or (shutil.which(name, path=path) if path else None)


def postgres_programs() -> Path | None:
    """Find the folder with PostgreSQL's programs, the newest release first."""
    found = [Path(path).resolve().parent for name in ("initdb",) if (path := shutil.which(name))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


def _programs(*names: str, path: str = "") -> Callable[[], str]:
    def lack() -> str:
        absent = [name for name in names if program(name, path) is None]
        return f"{', '.join(absent)} not on PATH" if absent else ""

    return lack


def _for_root(*names: str) -> Callable[[], str]:
    return lambda: "the tests do not run as root" if os.geteuid() != 0 else _programs(*names)()


def _postgres() -> str:
    return "" if postgres_programs() else "initdb not on PATH"


def redis_program() -> str | None:
    """Find a server that speaks Redis's protocol."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def _redis() -> str:
    return "" if redis_program() else "neither redis-server nor valkey-server on PATH"


def _node() -> str:
    return (requirements.missing(controlplane.new_directory()) or "").partition(": `apt-get")[0]


def _image() -> str:
    lack = image_requirements.missing()
    return lack[0] if lack else ""


def _chromium() -> str:
    return "" if chromium() else "chromium not on PATH"


def _other_pulumi() -> str:
    compiled = cached_for(TOOLS["pulumi"], OTHER_ARCHITECTURE).is_file()
    return "" if compiled else f"the Pulumi CLI for {OTHER_ARCHITECTURE} is not compiled"


def _systemd() -> str:
    if lack := _for_root("unshare", "systemctl")():
        return lack
    return "" if SYSTEMD.exists() else f"no {SYSTEMD}"


def _tools(*names: str) -> Callable[[], str]:
    def lack() -> str:
        absent = []
        for name in names:
            try:
                locate(name)
            except ToolMissing:
                absent.append(name)
        return f"{', '.join(absent)} not built" if absent else ""

    return lack


_LINUX = sys.platform == "linux"
NEEDS = (
    Need("root", _for_root(), "other users, small disks, network namespaces, real nodes", other_command="run as root"),
    Need("sshd", _programs("sshd", "ssh-keygen", path=SBIN), "hosts over SSH", ("openssh-server", "openssh-client")),
    Need("PostgreSQL", _postgres, "state backends on PostgreSQL", ("postgresql",)),
    Need("Redis", _redis, "limits of the gateway's keys in Redis", ("redis-server",)),
    Need(
        "node",
        _node,
        "pods on a real kubelet (tests/node)",
        ("containerd", "runc", "nftables", "iproute2", "busybox-static", "curl", "containernetworking-plugins"),
    ),
    Need("image", _image, "the operator's image", ("mmdebstrap", "skopeo", "umoci")),
    Need("skopeo", _programs("skopeo"), "images of bundles", ("skopeo",)),
    Need(
        "image for another architecture",
        _other_pulumi,
        f"the operator's image for {OTHER_ARCHITECTURE}",
        other_command=f"herdsman image build --architecture {OTHER_ARCHITECTURE} compiles it once, in some minutes",
    ),
    Need("network namespaces", _for_root("ip"), "hosts with addresses of their own", ("iproute2",)),
    Need("systemd", _systemd, "the agent as a service of a real systemd", ("systemd", "util-linux")),
    Need("systemd-analyze", _programs("systemd-analyze"), "the check of unit files", ("systemd",)),
    Need("curl", _programs("curl"), "the download script of pods", ("curl",)),
    Need("chromium", _chromium, "the web console in a browser", ("chromium",)),
    Need("busybox", _programs("busybox"), "the scripts of pods in busybox's shell", ("busybox-static",)),
    Need("dash", _programs("dash"), "the drain script in dash", ("dash",)),
    Need("bash", _programs("bash"), "the drain script in bash", ("bash",)),
    Need("setpriv", _programs("setpriv"), "the download script as another user", ("util-linux",)),
    Need("wget", _programs("wget"), "the drain script with wget", ("wget",)),
    Need("shellcheck", _programs("shellcheck"), "the check of shell scripts", ("shellcheck",)),
    Need(
        "checkers of workflows",
        _tools("actionlint", "jv", "gitlab-ci-schema"),
        "the check of workflows for GitHub and GitLab",
        other_command="make lint builds them, or herdsman tools install actionlint jv gitlab-ci-schema",
    ),
    Need(
        "LangChain",
        _tools("langchain-openai"),
        "LangChain's client of the gateway",
        other_command="make test-tools installs it, or herdsman tools install langchain-openai",
    ),
    Need("go", _programs("go"), "builds of tools; the CRDs of peers", ("golang-go",)),
    Need(
        "pulumi-resource-kubernetes",
        _programs("pulumi-resource-kubernetes"),
        "the official Kubernetes provider beside Herdsman's",
        other_command="pulumi plugin install resource kubernetes, and put it on PATH",
    ),
    Need(
        "pulumi-language-python",
        _programs("pulumi-language-python"),
        "a static fleet by Pulumi's own language host",
        other_command="install Pulumi from https://www.pulumi.com/docs/install",
    ),
    Need(
        "tools",
        _tools("helm", "kwok", "lws-controller", "versitygw", *(("kubelet", "kube-proxy") if _LINUX else ())),
        "pretended and real nodes, groups of pods, S3, the Helm chart",
        other_command="make test builds them, or herdsman tools install NAME",
    ),
)
_BY_NAME = {need.name: need for need in NEEDS}


def require(name: str) -> None:
    """Skip the test where the need is not met; the reason names what is missing and how to get it."""
    need = _BY_NAME[name]
    if lack := need.lack():
        pytest.skip(f"needs {need.name}: {lack}; {need.command}")


def lines(needs: Iterable[Need] = NEEDS) -> list[str]:
    """Return a table of the tests that will be skipped and how to meet each need."""
    missing = [(need, lack) for need in needs if (lack := need.lack())]
    if not missing:
        return ["All that the tests need is on this machine."]
    rows = [("missing", "tests that are skipped", "why", "what brings it")]
    rows += [(need.name, need.skipped, lack, need.command) for need, lack in missing]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    told = [f"{len(missing)} needs of tests are missing on this machine:"]
    for row in rows:
        first = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=False))
        told.append(f"  {first}  {row[3]}".rstrip())
    packages = sorted({package for need, _ in missing for package in need.packages})
    if packages:
        told.append(f"All packages at once: apt-get install {' '.join(packages)}")
    return told
