"""Runs the shell scripts of CI, and checks that no secret appears in an argument or in a log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_RECORD = "\x1e"
_KEPT_IN_SHELL = ("printf", "export", "[", "[[", "test", "local", "readonly")
"""Shell builtins: their arguments do not appear in the list of processes."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The variables of the machine, a folder for traces, and the secrets. All scripts of a test share them."""

    environment: Mapping[str, str]
    scratch: Path
    secrets: Mapping[str, str] = field(default_factory=dict)
    """By name. For a secret of several lines, its longest line is searched for."""
    timeout_s: float = 600.0
    """One trace file for each script."""

    def run(self, script: str, *, shell: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str:
        """Run one script to its end and return its output. It fails unless the exit code is 0.

        bash writes each command with its arguments to a file before it runs the command. The run fails if the arguments
        of a command that is no shell builtin hold a secret, or if the output holds one.
        """
        self.scratch.mkdir(parents=True, exist_ok=True)
        file, trace = self.scratch / "step.sh", self.scratch / "trace"
        # When bash runs as root, it ignores PS4 in the environment.
        file.write_text(f"PS4='{_RECORD}+ '; set -x\n{script}")
        with trace.open("w") as written:
            done = subprocess.run(
                ["bash", *shell, str(file)],
                cwd=directory,
                env={**environment, "BASH_XTRACEFD": str(written.fileno())},
                pass_fds=(written.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
        output = done.stdout + done.stderr
        commands = trace.read_text(errors="replace").split(_RECORD)
        for name, secret in self.secrets.items():
            mark = max(secret.splitlines(), key=len)
            assert mark not in output, f"the secret {name} is in the log of the script:\n{script}"
            for command in commands:
                words = command.lstrip("+ ").split()
                assert mark not in command or words[0] in _KEPT_IN_SHELL or "=" in words[0], (
                    f"the secret {name} is an argument of `{words[0]}` in the script:\n{script}"
                )
        assert done.returncode == 0, f"{script}\n{output}"
        return output


def bare_environment(**more: str) -> dict[str, str]:
    """The variables of a fresh machine: of the test's variables, only the ones that a program needs to start."""
    kept = {name: os.environ[name] for name in ("LANG", "TZ", "SSL_CERT_FILE") if name in os.environ}
    return {"PATH": os.environ["PATH"], "CI": "true", **kept, **more}
