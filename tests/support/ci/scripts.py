"""Runs the shell scripts of CI, and looks that no secret leaves them by an argument or a log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_RECORD = "\x1e"
_KEPT_IN_SHELL = ("printf", "export", "[", "[[", "test", "local", "readonly")
"""Commands of the shell itself: their arguments are in no list of processes."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The variables of the machine, a folder for traces, and the secrets: every script of a test shares them."""

    environment: Mapping[str, str]
    scratch: Path
    secrets: Mapping[str, str] = field(default_factory=dict)
    """By name; a secret of several lines is looked for by its longest line."""
    timeout_s: float = 600.0
    """For each script."""

    def run(self, script: str, *, shell: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str:
        """Run one script to its end and return its output. It fails unless the exit code is 0.

        bash writes each command with its arguments to a file before it runs it. No command but those of the shell
        itself may have a secret there, and no secret may be in the output.
        """
        self.scratch.mkdir(parents=True, exist_ok=True)
        file, trace = self.scratch / "step.sh", self.scratch / "trace"
        # bash as root takes no PS4 from its environment.
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
    """The variables of a fresh machine: no more of the tests' own than a program needs to start."""
    kept = {name: os.environ[name] for name in ("LANG", "TZ", "SSL_CERT_FILE") if name in os.environ}
    return {"PATH": os.environ["PATH"], "CI": "true", **kept, **more}
