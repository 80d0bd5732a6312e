"""The image is pinned to the versions that everything else is tested with, and runs as the user that the pod names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from automation.install import operator
from automation.install.options import default_image
from tools import versions

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Containerfile").read_text()
ARGUMENTS = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.MULTILINE))


def test_the_cli_is_the_one_that_is_tested() -> None:
    assert ARGUMENTS["PULUMI_VERSION"] == versions.PULUMI
    needed = re.search(r"^go (\d+)\.(\d+)", (ROOT / "tools/go/pulumi/go.mod").read_text(), re.MULTILINE)
    assert needed is not None
    given = tuple(int(part) for part in ARGUMENTS["GO_VERSION"].split("."))
    assert given[:2] >= (int(needed[1]), int(needed[2]))


def test_every_base_is_pinned_to_a_whole_version() -> None:
    bases = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    assert len(bases) == 3
    for base in bases:
        [argument] = re.findall(r"\$\{(\w+)\}", base)
        assert re.fullmatch(r"\d+\.\d+\.\d+", ARGUMENTS[argument]), base


def test_it_runs_as_the_pods_user_and_never_as_root() -> None:
    [user] = re.findall(r"^USER (\S+)$", TEXT, re.MULTILINE)
    assert user == f"{operator.USER}:{operator.USER}"
    assert f"--uid {operator.USER}" in TEXT
    assert 'ENTRYPOINT ["herdsman"]' in TEXT and f"EXPOSE {operator.HEALTH_PORT}" in TEXT


def test_it_is_named_as_the_installation_names_it() -> None:
    assert f"/{default_image()} " in TEXT


@pytest.mark.parametrize("path", sorted(set(re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE))))
def test_everything_that_is_copied_is_there(path: str) -> None:
    for name in path.split():
        assert (ROOT / name).exists()
