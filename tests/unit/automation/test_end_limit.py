"""A process that hangs while it stops."""

from __future__ import annotations

import subprocess
import sys

HANGS = """
import threading
from automation.startup.end_limit import limit_end

limit_end(0.1)
threading.Event().wait(30)
"""


def test_a_process_that_hangs_is_ended_and_prints_where_it_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], timeout=50, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Did not end in time" in ended.stdout + ended.stderr
    assert "in wait" in ended.stderr


def test_a_process_that_cannot_print_is_ended_too() -> None:
    code = HANGS.replace("import threading", "import os, threading\nos.close(1)\nos.close(2)", 1)
    assert subprocess.run([sys.executable, "-c", code], timeout=50).returncode == 1
