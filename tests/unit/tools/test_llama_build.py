"""The optimization of llama-server's sources (tools/llama/build.cmake), in a project with its folders and targets."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import recipes
from tools.versions import TOOLS

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("c++") is None,
    reason="no `cmake` or no `c++` on PATH: `apt-get install cmake g++`",
)

FOLDERS = {
    "ggml": 'project("ggml" CXX)\nadd_library(ggml STATIC kernel.cpp)\n',
    "src": "add_library(llama STATIC llama-sampler.cpp llama-model.cpp models/one.cpp)\n",
    "common": "add_library(llama-common STATIC sampling.cpp arg.cpp parsers/one.cpp)\n",
    "tools/mtmd": "add_library(mtmd STATIC mtmd-image.cpp clip.cpp models/first.cpp models/second.cpp)\n",
    "tools/server": "add_library(server-context STATIC server-context.cpp)\n",
}
HEADERS = ("src/llama-model.h", "common/chat.h", "tools/server/server-common.h")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the compiler's command for each source."""
    source = tmp_path_factory.mktemp("llama")
    top = ["cmake_minimum_required(VERSION 3.14...3.28)", 'project("llama.cpp" CXX)']
    top += [f"add_subdirectory({folder})" for folder in FOLDERS]
    (source / "CMakeLists.txt").write_text("\n".join(top) + "\n")
    for folder, text in FOLDERS.items():
        (source / folder).mkdir(parents=True, exist_ok=True)
        (source / folder / "CMakeLists.txt").write_text(text)
        for word in text.replace(")", " ").split():
            if word.endswith(".cpp"):
                (source / folder / word).parent.mkdir(exist_ok=True)
                (source / folder / word).write_text("")
    for header in HEADERS:
        (source / header).write_text("")
    options = [*recipes._llama_options(TOOLS["llama-server"]), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    subprocess.run(
        ["cmake", "-S", str(source), "-B", str(source / "build"), *options], check=True, capture_output=True, timeout=99
    )
    entries = json.loads((source / "build" / "compile_commands.json").read_text())
    return {str(Path(entry["file"]).relative_to(source)): entry["command"] for entry in entries}


def level(command: str) -> str:
    """Return the optimization that counts: the compiler uses the last one."""
    return [word for word in command.split() if word.startswith("-O")][-1]


@needs_cmake
def test_the_kernels_and_the_work_for_each_token_keep_the_full_optimization(commands: dict[str, str]) -> None:
    fast = {"ggml/kernel.cpp", "src/llama-sampler.cpp", "common/sampling.cpp", "tools/mtmd/mtmd-image.cpp"}
    assert fast == {name for name, command in commands.items() if level(command) == "-O3"}
    others = {name for name, command in commands.items() if level(command) == "-O1"}
    assert {"src/llama-model.cpp", "common/arg.cpp", "tools/server/server-context.cpp"} <= others


@needs_cmake
def test_headers_are_compiled_once_and_small_sources_in_groups(commands: dict[str, str]) -> None:
    assert "cmake_pch" in commands["src/llama-model.cpp"]
    assert "cmake_pch" in commands["common/arg.cpp"]
    assert "cmake_pch" in commands["tools/server/server-context.cpp"]
    assert "cmake_pch" not in commands["common/sampling.cpp"], "its optimization differs from that of the header"
    assert "tools/mtmd/clip.cpp" in commands
    assert not [name for name in commands if name.startswith(("tools/mtmd/models/", "common/parsers/"))]
