"""Ends a process that was told to stop and does not."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading

import structlog

END_LIMIT_S = 80.0
"""Less than the termination grace period of the operator's pod (90 s), so that the stacks are still logged."""

log = structlog.get_logger(__name__)


def limit_end(limit_s: float = END_LIMIT_S) -> None:
    """End the process in `limit_s` seconds, with the stacks of its threads on stderr and exit code 1.

    A loop that hangs while it stops keeps its lease, and no other loop can lead. Returns at once; a process that ends
    by itself before is not affected.
    """
    timer = threading.Timer(limit_s, _end, (limit_s,))
    timer.daemon = True
    timer.start()


def _end(limit_s: float) -> None:
    try:
        log.error("Did not end in time after the request to stop; ending the process", limit_s=limit_s)
        faulthandler.dump_traceback(file=sys.stderr)
    finally:
        os._exit(1)  # also where the reader of the output is gone
