"""The list of llama-server's arguments that hosts allow, compared with the help of a real llama-server.

The tests fail if a release gives a flag another number of values, or a path instead of a number.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from program.runtimes.host_flags import LLAMA_SERVER, VARIABLES

OLDER = frozenset(
    {
        *("--mlock", "--mmap", "--no-mmap", "-dio", "--direct-io", "-ndio", "--no-direct-io", "--moe-cache-mib"),
        *("-cd", "--ctx-size-draft", "-cpent", "--checkpoint-every-n-tokens"),
    }
)
"""Flags of other releases, which the built llama-server does not have."""
OLDER_VARIABLES = frozenset(
    f"LLAMA_ARG_{name}" for name in ("MLOCK", "MMAP", "NO_MMAP", "DIO", "NO_KV_OFFLOAD", "MOE_CACHE_MIB")
)
_PATHS = re.compile(r"FNAME|PATH|FILE|DIR|URL|COMMAND")


@pytest.fixture(scope="module")
def said(llama_server: Path) -> str:
    asked = subprocess.run([str(llama_server), "--help"], capture_output=True, timeout=60, check=False)
    return (asked.stdout + asked.stderr).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def known(said: str) -> dict[str, str]:
    """The placeholder of each flag's value in the help; empty for a switch."""
    found: dict[str, str] = {}
    for line in said.splitlines():
        if not line.startswith("-") or line.startswith("---"):
            continue
        names, words = [], line.split()
        while words and words[0].startswith("-"):
            names.append(words[0].rstrip(","))
            if not words.pop(0).endswith(","):
                break
        rest = line[line.index(names[-1]) + len(names[-1]) :]
        value = "" if rest.startswith("   ") else rest.strip().split("  ")[0]
        found.update(dict.fromkeys(names, value))
    return found


def test_allowed_flags_have_the_values_that_the_server_gives_them(known: dict[str, str]) -> None:
    listed = LLAMA_SERVER
    valued = listed.values | listed.paths | listed.repositories | set(listed.host_values)
    assert len(known) > 200
    assert (valued | listed.switches | listed.pairs) - OLDER <= set(known)
    assert [flag for flag in listed.switches - OLDER if known[flag]] == []
    assert [flag for flag in valued - OLDER if not known[flag]] == []
    assert [flag for flag in listed.pairs if len(known[flag].split()) != 2] == []


def test_no_allowed_value_is_a_file_an_address_or_a_program(known: dict[str, str]) -> None:
    assert [flag for flag in LLAMA_SERVER.values - OLDER if _PATHS.search(known[flag])] == []
    # Other dangerous flags, which only their description shows.
    refused = {"--tools", "--tools-runtime", "--mcp-servers-json", "--agent", "--rpc", "--prio", "--ui-mcp-proxy"}
    assert refused <= set(known)
    allowed = LLAMA_SERVER.values | LLAMA_SERVER.switches
    assert not refused & allowed


def test_a_variable_is_allowed_where_its_flag_is(said: str, known: dict[str, str]) -> None:
    variables = {name for name in VARIABLES["llamacpp"] if name.startswith("LLAMA_")}
    of_flag: dict[str, list[str]] = {}
    flags: list[str] = []
    for line in said.splitlines():
        if line.startswith("-") and not line.startswith("---"):
            flags = [word.rstrip(",") for word in line.split() if word.rstrip(",") in known]
        for name in re.findall(r"\(env: ([A-Z_0-9]+)\)", line):
            of_flag[name] = flags
    assert variables - OLDER_VARIABLES <= set(of_flag)
    harmless = LLAMA_SERVER.values | LLAMA_SERVER.switches
    wrong = [name for name in variables - OLDER_VARIABLES if not harmless.intersection(of_flag[name])]
    assert wrong == []
