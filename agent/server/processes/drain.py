"""Waits, before a process is stopped as planned, until its requests have ended, and never longer than the plan says.

Called by `worker` after its report says Stopping. First the endpoints go, then the engine is asked; an
engine that cannot be asked is judged by the connections on its port. `verdict` is pure, the rest is I/O.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

from agent.contract import DRAIN_TIMEOUT_S, IdleQuestion, ProcessPlan
from agent.server.processes.engines import idle_questions

ENDPOINTS_GONE_S = 3.0
"""How long to wait for the word that clients are sent elsewhere."""
SETTLE_S = 1.0
"""How long clients of a cluster go on after that: until every node's kube-proxy has heard of it."""
POLL_S = 0.2
ASK_TIMEOUT_S = 2.0
UNKNOWN_S = 5.0
"""How long requests have where nobody can tell whether there are any."""
QUIET_ANSWERS = 2
"""Idle answers in a row that count: a request may lie between two that are asked for one after the other."""

_CAN_SEND = ("01", "08")
"""Established, and closed by the client for its own part: numbers of <net/tcp_states.h>."""
UNANSWERED = 0
REFUSED = -1


class Drained(Enum):
    """How a drain ended."""

    IDLE = auto()
    TIMED_OUT = auto()
    CALLED_OFF = auto()
    """Somebody wants the process again, or the agent leaves it to the next one."""


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
    """As `Surroundings.withdrawn`."""
    called_off: Callable[[], bool]
    alive: Callable[[], bool]


def timeout_of(plan: ProcessPlan, cap_s: float | None = None) -> float:
    """Give how long requests under way may take: the plan's time or the usual one, at most `cap_s`."""
    wished = DRAIN_TIMEOUT_S if plan.drain_timeout_s is None else plan.drain_timeout_s
    return max(0.0, wished if cap_s is None else min(wished, cap_s))


def drain(work: Draining, *, sleep: Callable[[float], None] = time.sleep) -> Drained:
    """Return once no request is under way, or when that has taken long enough."""
    began = time.monotonic()
    end = began + work.timeout_s
    if not _wait_for_endpoints(work, end, sleep):
        return Drained.CALLED_OFF
    quiet, unknown_since = 0, time.monotonic()
    while True:
        if work.called_off():
            return Drained.CALLED_OFF
        now = time.monotonic()
        if now >= end:
            return Drained.TIMED_OUT
        if not work.alive() or work.plan.daemon_model is not None:
            # A shared daemon lets go of a model only when its requests have ended.
            return Drained.IDLE
        busy = is_busy(work, timeout_s=min(ASK_TIMEOUT_S, end - now))
        if busy is False and unsent(work.pid, work.port):
            busy = True  # all is worked out, and a slow client has not got all of it
        quiet = quiet + 1 if busy is False else 0
        if quiet >= QUIET_ANSWERS:
            return Drained.IDLE
        if busy is not None:
            unknown_since = time.monotonic()
        elif time.monotonic() - unknown_since >= UNKNOWN_S:
            return Drained.TIMED_OUT
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
        told = verdict(question, status, body)
        if told is not None:
            return told
    return connected(work.pid, work.port)


def verdict(question: IdleQuestion, status: int, body: bytes) -> bool | None:
    """Read an answer: True means busy; None that it tells nothing."""
    if question.kind == "status":
        return not 200 <= status < 300
    if status != 200:
        return None
    text = body.decode("utf-8", "replace")
    if question.kind == "slots":
        try:
            slots = json.loads(text)
        except ValueError:
            return None
        if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
            return None
        return any(bool(slot.get("is_processing")) for slot in slots)
    values = [_sample(line) for line in text.splitlines() if line.partition("{")[0].split(" ")[0] == question.gauge]
    numbers = [value for value in values if value is not None]
    return sum(numbers) > 0 if numbers else None


def _sample(line: str) -> float | None:
    """Read the value of a line of Prometheus' text; after it there may be a time."""
    rest = line.rpartition("}")[2].split() if "}" in line else line.split()[1:]
    try:
        return float(rest[0])
    except (IndexError, ValueError):
        return None


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
