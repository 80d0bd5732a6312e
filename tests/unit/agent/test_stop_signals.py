"""Signals that end a process."""

from __future__ import annotations

import subprocess
import sys

HOLDS_THE_LOCK = """
import os, signal, threading
from agent.stop_signals import on_stop_signal

lock, stopping = threading.Lock(), threading.Event()

def act():
    with lock:
        stopping.set()

on_stop_signal(act)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
assert stopping.wait(20)
stopping.clear()
os.kill(os.getpid(), signal.SIGINT)
assert stopping.wait(20)
"""


def test_a_signal_that_arrives_while_the_main_thread_holds_a_lock_is_acted_on() -> None:
    assert subprocess.run([sys.executable, "-c", HOLDS_THE_LOCK], timeout=50).returncode == 0
