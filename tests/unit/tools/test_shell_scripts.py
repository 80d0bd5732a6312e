"""Shell scripts are separate files, which shellcheck reads and the wheel contains."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.packages import PACKAGES
from tools import shell_scripts

ROOT = Path(__file__).resolve().parents[3]
_SHELL = re.compile(r"(; then\b|^\s*(fi|done|esac)\b|\bdo$|^\s*case .* in$)", re.MULTILINE)


def embedded(source: str) -> list[int]:
    """Return the line numbers of the strings that are shell scripts of several lines."""
    found = []
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in prose:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if text.count("\n") > 1 and _SHELL.search(text):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_script_is_hidden_in_python(package: str) -> None:
    """shellcheck does not find a script in a string, and Python would interpret its backslashes."""
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert {str(file.relative_to(ROOT)): lines for file in files if (lines := embedded(file.read_text()))} == {}


def test_a_hidden_script_is_found() -> None:
    assert embedded('A = f"""cd {x}\nfor a in *; do\n  echo\ndone\n"""\n')[:1] == [1]
    assert embedded('"""Prose.\n\nWhat is\ndone, is done.\n"""\n') == []


def test_templates_are_read_as_conditions() -> None:
    text = "a={{ .X }}\n{{ if .Y }}\nb=1\n{{ else }}\nb=2\n{{- end }}\n{{ with .Z }}c=1{{ end }}"
    assert [line.strip() for line in shell_scripts.without_templates(text).split("\n")] == [
        "a=word",
        "if true; then",
        "b=1",
        "else",
        "b=2",
        "fi",
        "if true; then c=1; fi",
    ]


def test_what_shellcheck_finds_is_named_with_its_line(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip(f"shellcheck is missing; {shell_scripts.HINT}")
    script = tmp_path / "a.sh"
    script.write_text("cd /tmp\n[ $1 = x ] || exit 0\n")
    told = shell_scripts.complaints(script, "some/a.sh")
    assert "some/a.sh:2:" in told and "SC2086" in told
    script.write_text('[ "$1" = x ] || exit 0\n')
    assert shell_scripts.complaints(script, "some/a.sh") == ""


def test_lint_fails_where_shellcheck_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.shell_scripts"]
    ended = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "apt-get install shellcheck" in ended.stderr


def test_a_wheel_has_every_script(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(copy)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    scripts = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.sh")}
    assert len(scripts) > 10
    assert scripts - names == set()
