"""`herdsman console` as a process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def console_process(kubeconfig: Path) -> Iterator[str]:
    """Run a console while the block lasts; yields its link, which works once."""
    argv = [sys.executable, "-m", "automation.cli", "console", "--port", "0", "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
