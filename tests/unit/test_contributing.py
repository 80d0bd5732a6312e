"""The rules for contributors agree with the code: test layers, targets of make, pre-commit hooks, rules of imports."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
LAYERS = sorted(path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py")))


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_has_a_target_and_a_row_in_the_readme(layer: str) -> None:
    assert re.search(rf"^test-{layer}:.*## \S", MAKEFILE, re.MULTILINE)
    table = (ROOT / "tests" / "README.md").read_text("utf-8")
    assert re.search(rf"^\| `{layer}` \|.*`make test-{layer}`", table, re.MULTILINE)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "unit"])
def test_the_target_of_a_layer_runs_its_folder(layer: str) -> None:
    assert f"tests.support.suite_run  tests/{layer} -x" in planned(f"test-{layer}", "ARGS=-x")


@pytest.mark.parametrize(
    ("target", "options"),
    [("test", "--short"), ("test-soak", "--soak"), ("test-nightly", "--nightly"), ("test-stress", "--short --stress")],
)
def test_each_part_of_the_tests_has_a_target(target: str, options: str) -> None:
    assert f"tests.support.suite_run {options}  --ci" in planned(target, "ARGS=--ci")


def test_ci_runs_the_long_tests_after_the_short_ones() -> None:
    assert targets_of_ci("") == ["setup", "lint", "test", "test-soak"]
    assert targets_of_ci("nightly") == ["setup", "lint", "test", "test-soak", "test-nightly", "test-stress"]


def test_each_layer_has_tests_that_make_test_runs() -> None:
    long = re.compile(r"^pytestmark = .*\bpytest\.mark\.(soak|nightly)\b", re.MULTILINE)
    for layer in LAYERS:
        files = list((ROOT / "tests" / layer).rglob("test_*.py"))
        assert [file for file in files if not long.search(file.read_text("utf-8"))], layer


def test_results_are_written_to_the_file_that_is_named() -> None:
    assert "--junit-xml='build/a b.xml'" in planned("test", "JUNIT=build/a b.xml")
    assert "junit" not in planned("test")


def test_what_the_fast_target_leaves_out_exists() -> None:
    command = planned("test-fast")
    folders = re.findall(r"--ignore=(\S+)", command)
    globs = re.findall(r"--ignore-glob='([^']+)'", command)
    units = [str(path) for path in (ROOT / "tests" / "unit").rglob("test_*.py")]
    assert folders and globs
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
    assert [glob for glob in globs if not fnmatch.filter(units, glob)] == []


def test_the_hooks_are_programs_of_the_virtual_environment() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert {each["repo"] for each in repositories} == {"local"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = {re.split(r"[=<>]", each)[0] for each in project["optional-dependencies"]["dev"]}
    for hook in (hook for each in repositories for hook in each["hooks"]):
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/") and Path(program).name in installed


def test_the_table_of_imports_names_each_package_that_the_contracts_name() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    named = {module for contract in contracts for module in contract.get("source_modules", ())}
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert sorted(module for module in named if f"`{module}`" not in text) == []


def targets_of_ci(argument: str) -> list[str]:
    """Return the targets of make that .ci/run runs, in order."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    steps, _, nightly = script.partition('if [ "${1-}" = nightly ]')
    text = steps + nightly if argument == "nightly" else steps
    return re.findall(r"^ *make (\S+)", text, re.MULTILINE)


def planned(target: str, *variables: str) -> str:
    """Return the commands that make would run."""
    # `make test ARGS=… JUNIT=…` passes its variables to every make that it starts, so also to this one.
    given = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS", "JUNIT")
    environment = {name: value for name, value in os.environ.items() if name not in given}
    # The virtual environment of this test may be in another folder, so -o tells make that .venv is up to date.
    command = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed", target, *variables]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout
