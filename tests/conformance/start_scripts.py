"""Runs a container's start script with a `vllm` that only records its arguments, and returns these arguments.

The environment is that of the recording: vLLM has version 0.23.0, the leader is 192.0.2.10, the worker's index is 1.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

VERSION, LEADER = "0.23.0", "192.0.2.10"

_VLLM = f"""#!/bin/sh
if [ "$*" = --version ]; then echo {VERSION}; exit; fi
for argument; do printf '%s\\0' "$argument"; done > "$NOTED_ARGUMENTS"
"""
_PYTHON = f"""#!/bin/sh
case "$*" in *importlib.metadata*) echo {VERSION};; *) exec {sys.executable} -I "$@";; esac
"""
_GETENT = f"""#!/bin/sh
echo {LEADER} "$3"
"""


def vllm_arguments(container: Mapping[str, Any]) -> list[str] | dict[str, Any] | None:
    """Return the arguments that a container's start script passes to vLLM.

    Returns None if the command is no shell script that starts vLLM, and `{error, rc}` if the script ended without a
    start of vLLM: the last line of its stderr, and its exit status.
    """
    command = [str(word) for word in container.get("command") or ()]
    if len(command) < 3 or Path(command[0]).name not in ("bash", "sh") or "vllm" not in command[2]:
        return None
    if not isinstance(container["command"][2], str):
        return None  # a recorded script: the vector has only its digest
    env = {"LWS_LEADER_ADDRESS": LEADER, "LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "4"}
    for entry in container.get("env") or ():
        if "value" in entry:
            env[entry["name"]] = _expanded(entry["value"], env)
    words = [_expanded(str(word), env) for word in (*command, *(container.get("args") or ()))]
    answer = _run(tuple(words), tuple(sorted(env.items())))
    handed: list[str] | dict[str, Any] = json.loads(answer)
    return handed


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as the kubelet does; `$$` becomes `$`, and the text after it is not expanded."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)",
        lambda found: "$" if found[1] is None else env.get(found[1], found[0]),
        text,
    )


@lru_cache(maxsize=4096)
def _run(words: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "arguments"
        for name, text in (("vllm", _VLLM), ("python3", _PYTHON), ("python", _PYTHON), ("getent", _GETENT)):
            program = Path(folder) / name
            program.write_text(text)
            program.chmod(0o755)
        environment = {**dict(env), "PATH": f"{folder}:/usr/bin:/bin", "NOTED_ARGUMENTS": str(noted)}
        done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
        if noted.exists():
            return json.dumps(noted.read_bytes().decode().split("\0")[:-1])
        return json.dumps({"error": done.stderr.strip().splitlines()[-1:], "rc": done.returncode})
