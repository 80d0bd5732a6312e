"""The Containerfile pins the versions that the tests use, and its image runs as the user of the operator's pod."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from automation.install import operator
from automation.install.options import default_image, version
from tools import versions
from tools.image import contents

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Containerfile").read_text()
ARGUMENTS = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.MULTILINE))


def test_the_cli_is_the_one_that_is_tested() -> None:
    assert ARGUMENTS["PULUMI_VERSION"] == versions.PULUMI
    needed = re.search(r"^go (\d+)\.(\d+)", (ROOT / "tools/go/pulumi/go.mod").read_text(), re.MULTILINE)
    assert needed is not None
    given = tuple(int(part) for part in ARGUMENTS["GO_VERSION"].split("."))
    assert given[:2] >= (int(needed[1]), int(needed[2]))
    # The whole folder, because its go.mod replaces modules by folders in it.
    assert "\nCOPY tools/go/pulumi/ ./\n" in TEXT


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


def test_it_starts_as_the_image_without_docker_does() -> None:
    last = TEXT[TEXT.rindex("\nFROM ") :]
    pairs = dict(re.findall(r'([\w.]+)="?([^"\s\\]+(?: [^"\s\\=]+)*)"?', last))
    assert {name: pairs[name] for name in contents.ENVIRONMENT} == contents.ENVIRONMENT
    assert {name: pairs[name] for name in contents.LABELS} == contents.LABELS
    assert pairs["org.opencontainers.image.version"] == version()
    for instruction, words in (("ENTRYPOINT", contents.ENTRYPOINT), ("CMD", contents.COMMAND)):
        assert f"{instruction} {json.dumps(list(words))}" in last
    assert f"WORKDIR {contents.WORKING_FOLDER}" in last
    assert (contents.USER, contents.PORT) == (operator.USER, operator.HEALTH_PORT)


def test_what_it_alone_has_is_named() -> None:
    # Both images have the same environment, which the same modules build. This one also has programs of stage `pulumi`.
    built = set(re.findall(r"-o /out/([\w-]+)", TEXT)) | set(re.findall(r"/([\w-]+) /out/", TEXT))
    assert {f"usr/local/bin/{name}" for name in built} - {"usr/local/bin/pulumi"} == set(contents.ONLY_IN_CONTAINERFILE)
    copied = re.findall(r"^COPY --from=\w+ (\S+) (\S+)$", TEXT, re.MULTILINE)
    assert copied == [("/out/", "/usr/local/bin/"), (f"/{contents.HOME}", f"/{contents.HOME}")]


def test_the_packages_are_those_of_the_image_without_docker() -> None:
    stage = TEXT[TEXT.index(" AS packages") : TEXT.rindex("\nFROM ")]
    assert "python -m tools.image.locked > /tmp/runtime.lock" in stage
    assert f"python -m tools.image.trim /{contents.HOME}" in stage
    # Nothing else is installed, and dependencies are installed by their hashes only.
    assert (
        stage.count("pip install") == 2
        and "--no-deps --require-hashes" in stage
        and "--no-deps --no-build-isolation ." in stage
    )


def test_it_is_named_as_the_installation_names_it() -> None:
    assert f"/{default_image()} " in TEXT


@pytest.mark.parametrize("path", sorted(set(re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE))))
def test_everything_that_is_copied_is_there(path: str) -> None:
    for name in path.split():
        assert (ROOT / name).exists()
