"""The formulas of Homebrew: their text for given wheels, and the dependencies that they need."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.homebrew import build
from tools.homebrew.formula import AGENT, HERDSMAN, Package, formula
from tools.homebrew.wheels import PLATFORMS, Wheel, closure, reported, requirements
from tools.image.locked import LockUnclear, parse

ROOT = Path(__file__).parents[3]
LOCK = parse((ROOT / "requirements.lock").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAC, LINUX_ARM, LINUX_INTEL = PLATFORMS
EVERYWHERE = Wheel("typer", "https://files.example/typer-1-py3-none-any.whl", "a" * 64)


def compiled(tag: str, digit: str) -> Wheel:
    return Wheel("psutil", f"https://files.example/psutil-1-{tag}.whl", digit * 64)


def made(package: Package = HERDSMAN) -> str:
    return formula(
        package,
        version="1.2.3",
        license_id="Apache-2.0",
        homepage="https://github.com/example/herdsman",
        own=Wheel(package.name, "https://github.com/example/own.whl", "f" * 64),
        dependencies={
            MAC: [compiled("mac", "1"), EVERYWHERE],
            LINUX_ARM: [compiled("arm", "2"), EVERYWHERE],
            LINUX_INTEL: [compiled("intel", "3"), EVERYWHERE],
        },
    )


def test_a_file_for_all_platforms_is_named_once_and_others_by_platform() -> None:
    text = made()
    assert text.count(EVERYWHERE.url) == 1
    block = text[text.index('resource "psutil"') : text.index('resource "typer"')]
    words = re.findall(r"on_\w+|sha256 \"(\d)", block)
    assert re.findall(r"on_\w+", block) == ["on_macos", "on_arm", "on_linux", "on_arm", "on_intel"]
    assert [digit for digit in words if digit] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("package", "name", "command"),
    [
        (HERDSMAN, "Herdsman", 'run [opt_bin/"herdsman", "local", "up", "--foreground"]'),
        (AGENT, "HerdsmanAgent", 'run [opt_bin/"herdsman-agent", "agent", "run", "--host=this-machine"'),
    ],
)
def test_a_formula_has_what_homebrew_needs(package: Package, name: str, command: str) -> None:
    text = made(package)
    assert f"class {name} < Formula" in text
    assert command in text
    for part in ('license "Apache-2.0"', 'sha256 "' + "f" * 64, "test do", "service do", 'depends_on "llama.cpp"'):
        assert part in text
    assert len(package.description) <= 80 and not package.description.endswith(".")
    assert max(map(len, text.splitlines())) <= 130
    # Every block is closed.
    opened = len(re.findall(r"\bdo( \||$)|^\s*(class|def)\b", text, re.MULTILINE))
    assert opened == len(re.findall(r"^\s*end$", text, re.MULTILINE))


@pytest.mark.parametrize("package", [HERDSMAN, AGENT], ids=lambda package: package.name)
def test_the_services_command_exists(package: Package) -> None:
    """The options are read by the command line itself, so a renamed option fails here."""
    from automation.cli.main import application

    group, command, *options = package.service
    import typer.main

    found = typer.main.get_command(application((group,))).commands[group].commands[command]  # type: ignore[attr-defined]
    known = {name for parameter in found.params for name in parameter.opts}
    assert {option.partition("=")[0] for option in options} <= known


def test_the_syntax_is_rubys(tmp_path: Path) -> None:
    ruby = shutil.which("ruby")
    for package in (HERDSMAN, AGENT):
        path = tmp_path / f"{package.name}.rb"
        path.write_text(made(package))
        if ruby is not None:
            subprocess.run([ruby, "-c", str(path)], check=True, capture_output=True)


def test_the_dependencies_are_those_of_the_lock() -> None:
    own = {entry.name for entry in closure(LOCK, build.roots(HERDSMAN, PROJECT))}
    agent = {entry.name for entry in closure(LOCK, build.roots(AGENT, PROJECT))}
    assert {"pulumi", "grpcio", "pydantic-core", "cryptography"} <= own
    assert not {"pytest", "mypy", "hypothesis"} & own
    assert agent < own and not {"pulumi", "kubernetes", "grpcio"} & agent
    with pytest.raises(LockUnclear, match="lacks nothing-such"):
        closure(LOCK, ["nothing-such"])


def test_a_platform_gets_its_own_requirements_with_hashes() -> None:
    lock = parse(
        "one==1 ; sys_platform == 'win32' \\\n    --hash=sha256:" + "a" * 64 + "\n    # via herdsman\n"
        "two==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:" + "b" * 64 + "\n    # via herdsman\n"
        "three==3 \\\n    --hash=sha256:" + "c" * 64 + " \\\n    --hash=sha256:" + "d" * 64 + "\n    # via herdsman\n"
    )
    assert requirements(lock, MAC).splitlines() == [
        f"two==2 --hash=sha256:{'b' * 64}",
        f"three==3 --hash=sha256:{'c' * 64} --hash=sha256:{'d' * 64}",
    ]
    everything = requirements(closure(LOCK, build.roots(HERDSMAN, PROJECT)), LINUX_INTEL)
    assert all("--hash=sha256:" in line for line in everything.splitlines())
    assert len({line.partition("==")[0] for line in everything.splitlines()}) == len(everything.splitlines())


def test_pips_report_has_address_and_digest() -> None:
    report = """{"install": [{"metadata": {"name": "Typing_Extensions"}, "download_info": {
        "url": "https://files.example/x.whl", "archive_info": {"hashes": {"sha256": "ab"}}}}]}"""
    assert reported(json.loads(report)) == [Wheel("typing-extensions", "https://files.example/x.whl", "ab")]


def test_the_own_wheel_is_the_one_of_the_release(tmp_path: Path) -> None:
    (tmp_path / "herdsman_agent-1.2.3-py3-none-any.whl").write_bytes(b"wheel")
    found = build.own_wheel(tmp_path, AGENT, "1.2.3", "example/herdsman")
    assert found.url.endswith("/example/herdsman/releases/download/v1.2.3/herdsman_agent-1.2.3-py3-none-any.whl")
    assert found.sha256 == hashlib.sha256(b"wheel").hexdigest()


def test_without_wheels_the_message_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "wheels", lambda *_: [EVERYWHERE])
    assert build.main([str(tmp_path)]) == 1
    assert "build the wheels first" in capsys.readouterr().err
