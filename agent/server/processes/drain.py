"""Waits before a planned stop until the process's requests have ended, at most for the drain timeout of the plan.

Called by `worker` after it has reported the phase Stopping. First clients must leave the endpoints, then the engine is
asked whether it works on a request. If the engine cannot answer, the connections on its port count instead. The rules
are in `agent.processes.draining`.
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
"""How long to wait for the confirmation that the endpoints are withdrawn."""
POLL_S = 0.2
ASK_TIMEOUT_S = 2.0

_CAN_SEND = ("01", "08")
"""Connections that are established or half-closed by the client, as numbers of <net/tcp_states.h>."""
UNANSWERED = 0
REFUSED = -1


@dataclass(frozen=True)
class Draining:
    """The process of one drain, and the callbacks that can end it."""

    plan: ProcessPlan
    """The plan of the running process."""
    address: str
    port: int
    pid: int
    timeout_s: float
    withdrawn: Callable[[], bool | None]
    """As `WorkerContext.withdrawn`."""
    called_off: Callable[[], bool]
    alive: Callable[[], bool]


def drain(work: Draining, *, sleep: Callable[[float], None] = time.sleep) -> Drained:
    """Return when no request is running or the time is over."""
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
            # A shared daemon unloads a model only after its requests have ended.
            return Drained.IDLE
        busy = is_busy(work, timeout_s=min(ASK_TIMEOUT_S, end - now))
        if busy is False and unsent(work.pid, work.port):
            busy = True  # the engine is idle, but a slow client has not received all of the answer
        now = time.monotonic()
        progress = progress.answered(busy, now=now)
        if progress.outcome(timeout_s=work.timeout_s, now=now) is not Drained.IDLE:
            sleep(POLL_S)


def _wait_for_endpoints(work: Draining, end: float, sleep: Callable[[float], None]) -> bool:
    """Wait until the endpoints are withdrawn. Returns False if the drain was called off."""
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
    """Return whether a request is running, or None if that is unknown."""
    for question in idle_questions(work.plan):
        status, body = _get(work.address, work.port, question.path, timeout_s)
        if status == UNANSWERED:
            return True  # the engine is too busy to answer within the timeout
        if status == REFUSED:
            break
        told = is_busy_by(question, status, body)
        if told is not None:
            return told
    return connected(work.pid, work.port)


def connected(pid: int, port: int) -> bool | None:
    """Return whether a client is connected to this port of a process or its children.

    Returns None if the agent may not read the connections.
    """
    try:
        leader = psutil.Process(pid)
        family = [leader, *leader.children(recursive=True)]
        open_ones = [c for each in family for c in each.net_connections(kind="tcp")]
    except (psutil.Error, ValueError):
        return None
    return any(c.status == psutil.CONN_ESTABLISHED and c.laddr and c.laddr.port == port for c in open_ones)


def unsent(pid: int, port: int) -> bool:
    """Return whether a connection on a port has bytes that its client has not received yet.

    llama-server reports a slot as idle once the last token is generated, before the client has received it. Returns
    False on systems without `/proc/<pid>/net`.
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
