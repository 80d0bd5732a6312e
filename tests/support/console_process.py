"""`herdsman console` as a process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def console_process(kubeconfig: Path | None, *, home: Path | None = None) -> Iterator[str]:
    """Run a console while the block lasts; yields its link, which works once.

    Without a kubeconfig it is the console of local mode, whose folders are below `home`.
    """
    argv = [sys.executable, "-m", "automation.cli", "console", "--port", "0"]
    environment = dict(os.environ)
    if kubeconfig is not None:
        argv += ["--kubeconfig", str(kubeconfig)]
    else:
        own = ("KUBECONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")
        environment = {name: value for name, value in environment.items() if name not in own} | {"HOME": str(home)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
