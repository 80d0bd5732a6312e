"""Waits, before a process is stopped as planned, until its requests have ended, and never longer than the plan says.

Called by `worker` after its report says Stopping. First the endpoints go, then the engine is asked; an
engine that cannot be asked is judged by the connections on its port. The rules are in `agent.processes.draining`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

from agent.contract import ProcessPlan
from agent.processes.draining import SETTLE_S, Drain, Drained, is_busy_by
from agent.processes.engines import idle_questions

ENDPOINTS_GONE_S = 3.0
"""How long to wait for the word that clients are sent elsewhere."""
POLL_S = 0.2
ASK_TIMEOUT_S = 2.0

_CAN_SEND = ("01", "08")
"""Established, and closed by the client for its own part: numbers of <net/tcp_states.h>."""
UNANSWERED = 0
REFUSED = -1


@dataclass(frozen=True)
class Draining:
    """One drain: of whom, and by whose word."""

    plan: ProcessPlan
    """The plan that the process was started by."""
    address: str
    port: int
    pid: int
    timeout_s: float
    withdrawn: Callable[[], bool | None]
    """As `WorkerContext.withdrawn`."""
    called_off: Callable[[], bool]
    alive: Callable[[], bool]


def drain(work: Draining, *, sleep: Callable[[float], None] = time.sleep) -> Drained:
    """Return once no request is under way, or when that has taken long enough."""
    began = time.monotonic()
    end = began + work.timeout_s
    if not _wait_for_endpoints(work, end, sleep):
        return Drained.CALLED_OFF
    progress = Drain(since=began, known_at=time.monotonic())
    while True:
        if work.called_off():
            return Drained.CALLED_OFF
        now = time.monotonic()
        outcome = progress.outcome(timeout_s=work.timeout_s, now=now)
        if outcome is not None:
            return outcome
        if not work.alive() or work.plan.daemon_model is not None:
            # A shared daemon lets go of a model only when its requests have ended.
            return Drained.IDLE
        busy = is_busy(work, timeout_s=min(ASK_TIMEOUT_S, end - now))
        if busy is False and unsent(work.pid, work.port):
            busy = True  # all is worked out, and a slow client has not got all of it
        now = time.monotonic()
        progress = progress.answered(busy, now=now)
        if progress.outcome(timeout_s=work.timeout_s, now=now) is not Drained.IDLE:
            sleep(POLL_S)


def _wait_for_endpoints(work: Draining, end: float, sleep: Callable[[float], None]) -> bool:
    """Wait until clients are sent elsewhere. False: called off."""
    gone_by = min(end, time.monotonic() + ENDPOINTS_GONE_S)
    settled_at: float | None = None
    while time.monotonic() < gone_by if settled_at is None else time.monotonic() < min(end, settled_at):
        if work.called_off():
            return False
        told = work.withdrawn()
        if told is None or not work.alive():
            return True
        if told and settled_at is None:
            settled_at = time.monotonic() + SETTLE_S
        sleep(POLL_S / 4)
    return True


def is_busy(work: Draining, *, timeout_s: float) -> bool | None:
    """Ask whether a request is under way; None when nobody can tell."""
    for question in idle_questions(work.plan):
        status, body = _get(work.address, work.port, question.path, timeout_s)
        if status == UNANSWERED:
            return True  # too busy to say so, and the caller's patience ends
        if status == REFUSED:
            break
        told = is_busy_by(question, status, body)
        if told is not None:
            return told
    return connected(work.pid, work.port)


def connected(pid: int, port: int) -> bool | None:
    """Tell whether anybody is connected to a port of a process or its children; None when we may not know."""
    try:
        leader = psutil.Process(pid)
        family = [leader, *leader.children(recursive=True)]
        open_ones = [c for each in family for c in each.net_connections(kind="tcp")]
    except (psutil.Error, ValueError):
        return None
    return any(c.status == psutil.CONN_ESTABLISHED and c.laddr and c.laddr.port == port for c in open_ones)


def unsent(pid: int, port: int) -> bool:
    """Tell whether a connection of a process's port has bytes that its client has not taken yet.

    llama-server calls a slot idle when its last token is made. False where the system does not say it in a file.
    """
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, queues, *_ = line.split()
            mine = int(local.rpartition(":")[2], 16) == port
            if mine and state in _CAN_SEND and int(queues.partition(":")[0], 16):
                return True
    return False


def _get(address: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    connection = HTTPConnection(address, port, timeout=max(0.1, timeout_s))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(4 * 1024 * 1024)
    except ConnectionRefusedError:
        return REFUSED, b""
    except (OSError, HTTPException):
        return UNANSWERED, b""
    finally:
        connection.close()
