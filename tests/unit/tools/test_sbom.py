"""The SBOM lists the packages of the lock that Herdsman is installed with, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tools import sbom
from tools.image.locked import LockUnclear

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def components() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in sbom.document(LOCK, PROJECT, made_at=AT)["components"]}


def test_versions_are_those_that_are_installed(components: dict[str, dict[str, Any]]) -> None:
    for name in ("pydantic", "psutil", "grpcio", "pulumi"):
        assert components[name]["version"] == metadata.version(name)
        assert components[name]["purl"] == f"pkg:pypi/{name}@{metadata.version(name)}"


def test_every_package_has_hashes_and_tests_are_left_out(components: dict[str, dict[str, Any]]) -> None:
    for each in components.values():
        [files] = each["externalReferences"]
        assert files["hashes"], each["name"]
        assert all(len(digest["content"]) == 64 for digest in files["hashes"])
    assert not {"pytest", "mypy", "hypothesis"} & components.keys()


def test_references_are_unique_and_the_time_is_given() -> None:
    made = sbom.document(LOCK, PROJECT, made_at=AT)
    references = [each["bom-ref"] for each in made["components"]]
    assert len(references) == len(set(references))
    assert made["metadata"]["timestamp"] == "2026-01-02T00:00:00Z"


def test_a_package_without_a_version_is_an_error() -> None:
    project = PROJECT.replace('"pulumi==3.255.0"', '"one"')
    with pytest.raises(LockUnclear, match="no version of one"):
        sbom.document(f"one @ https://example.org/one.tar.gz\n{LOCK}", project, made_at=AT)
