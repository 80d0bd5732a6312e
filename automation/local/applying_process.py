"""Starts and ends the process that applies the folder. Imports little, so that it starts before its parent's parts."""

from __future__ import annotations

import contextlib
import subprocess
import sys

CONTEXTS_PENDING = 3
"""Exit code of a process that applied all services, and could not choose the context of one yet."""
ONLY_IF_CHANGED = "--only-if-changed"
STOP_S = 20.0


def start_applying(*, only_if_changed: bool = False) -> subprocess.Popen[bytes]:
    """Start the process. It waits for the agent of this process.

    With `only_if_changed` it runs Pulumi only if the contexts or documents differ from the last record.
    """
    options = [ONLY_IF_CHANGED] if only_if_changed else []
    # A session of its own: Ctrl-C reaches it by `stop_process`, which lets the engine write its state.
    return subprocess.Popen(
        [sys.executable, "-m", "automation.local.applying", *options], stdin=subprocess.DEVNULL, start_new_session=True
    )


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End the process, and wait. After a while it is killed."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
