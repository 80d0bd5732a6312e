"""Parses the output of `scripts/look.sh` about a host's processes, and interprets the state of units. Without I/O.

The script reads the records of the store and asks the service manager about each unit. Called by `processes`.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.client.ssh.layout import UNIT_PREFIX, Record, read_record
from agent.contract import EarlierProcess, ProcessPhase, ProcessReason, ProcessReport
from agent.processes import lifecycle
from agent.processes.adapters import adapters_of
from agent.processes.decision import UNHEALTHY_AFTER, Observed
from agent.processes.lifecycle import ProcessStatus, Running
from agent.processes.replacing import GOES_ON

_NAMES = ("record64", "proved", "launch", "start", "started", "installed", "unit")


@dataclass(frozen=True)
class ObservedProcess:
    """One process as the host shows it."""

    record: Record
    active: str = "inactive"
    """State in systemd's terms: active, activating, deactivating, failed, inactive."""
    pid: int = 0
    restarts: int = 0
    result: str = ""
    launch: str = ""
    """The launch hash of the running process."""
    installed: str = ""
    """The launch hash in the unit's file."""
    unit: str = ""
    """Checksum of the unit's file. Empty: there is none."""
    started: str = ""
    """When the process was started, by the host's wall clock, which may change."""
    started_in_boot: str = ""
    """The boot, and the start within it: ticks of the kernel, or the number of launchd's start."""
    proved: str = ""
    """The start that has answered a completion, in the form of `start` or `former_start`."""

    @property
    def runs(self) -> bool:
        return self.active == "active" and self.pid > 0

    @property
    def start(self) -> str:
        """Distinguishes this start of the process from all others."""
        return f"{self.pid} {self.launch} {self.started_in_boot}" if self.started_in_boot else self.former_start

    @property
    def former_start(self) -> str:
        """The same in the form of development versions, which may be stored on the host."""
        return f"{self.pid} {self.launch} {self.started}"

    @property
    def is_proved(self) -> bool:
        """Whether this start has answered a completion."""
        return self.proved != "" and self.proved in (self.start, self.former_start)


def read_processes(text: str) -> tuple[dict[str, ObservedProcess], tuple[str, ...]]:
    """Parse the output of the script. Returns processes by key, and units whose record is invalid."""
    found: dict[str, ObservedProcess] = {}
    unread: list[str] = []
    for first, lines in _blocks(text):
        said: dict[str, str] = {}
        for line in lines:
            name, separator, value = line.partition(" ")
            if separator and name in _NAMES:
                said[name] = value.strip()
            elif "=" in line:
                name, _, value = line.partition("=")
                said[name] = value.strip()
        record = read_record(_decoded(said.get("record64", "")))
        if record is None:
            unread.append(first)
            continue
        found[record.key] = ObservedProcess(
            record=record,
            active=said.get("ActiveState", "inactive"),
            pid=_int(said.get("MainPID", "")),
            restarts=_int(said.get("NRestarts", "")),
            result=said.get("Result", ""),
            launch=said.get("launch", ""),
            installed=said.get("installed", ""),
            unit=said.get("unit", ""),
            started=" ".join(said.get("started", "").split()),
            started_in_boot=said.get("start", ""),
            proved=said.get("proved", ""),
        )
    return found, tuple(unread)


def status_of_start(status: ProcessStatus, seen: ObservedProcess, *, now: float) -> ProcessStatus:
    """Return the status of the running start. It is a new one if the service manager restarted the process."""
    if not seen.runs or (status.running is not None and status.running.mark == seen.start):
        return status
    running = Running(
        pid=seen.pid,
        mark=seen.start,
        port=seen.record.port,
        launch_hash=seen.launch,
        since=now,
        started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        proved=seen.is_proved,
    )
    return lifecycle.process_adopted(ProcessStatus(), running, now=now)


def observe_unit(seen: ObservedProcess | None, status: ProcessStatus, launch_hash: str, *, now: float) -> Observed:
    """Return the observed state of a unit's process. `launch_hash` is the plan's, empty without a plan."""
    if seen is None:
        return Observed()
    if not seen.runs:
        # The service manager restarts a unit of this plan, or has given up.
        is_managed = seen.active in ("activating", "failed")
        return Observed(has_given_up=is_managed and seen.installed == launch_hash)
    if status.running is None or status.running.mark != seen.start:
        return Observed(running=seen.launch)
    return lifecycle.observe(status, None, is_alive=True, now=now)


def phase_of(
    seen: ObservedProcess | None, status: ProcessStatus, launch_hash: str, *, last_words: str = ""
) -> tuple[ProcessPhase, str, str]:
    """Return phase, reason and message of a planned process whose files are not being downloaded."""
    if seen is not None and seen.runs and seen.launch == launch_hash:
        if status.running is None or status.running.mark != seen.start:
            return ProcessPhase.STARTING, "", ""
        if status.phase not in (ProcessPhase.STARTING, ProcessPhase.READY, ProcessPhase.UNHEALTHY):
            status = lifecycle.stop_cancelled(status)
        return status.phase, status.reason, status.message
    if seen is not None and not seen.runs and seen.installed == launch_hash:
        words = f"; its last lines:\n{last_words}" if last_words else ""
        if seen.active == "failed":
            return ProcessPhase.FAILED, ProcessReason.CRASH_LOOP, f"the process ended too often ({seen.result}){words}"
        if seen.active == "activating":
            # launchd reports an exit code. 78 means that it cannot start the job at all.
            code = f" ({seen.result})" if seen.result.startswith("exit code") else ""
            return ProcessPhase.BACKING_OFF, ProcessReason.EXITED, f"the process ended{code} and starts again{words}"
    if status.attempts:
        return ProcessPhase.BACKING_OFF, status.reason, status.message
    if seen is not None and seen.runs:
        return ProcessPhase.STOPPING, ProcessReason.REPLACING, ""
    return ProcessPhase.PENDING, "", ""


def report_of_stopped(phase: ProcessPhase, reason: str, message: str, generation: int) -> ProcessReport:
    """Return the report of a process that does not run."""
    return ProcessReport(phase=phase, reason=reason, message=message, observed_generation=generation)


def serves_earlier(seen: ObservedProcess | None, status: ProcessStatus, launch_hash: str) -> bool:
    """Return whether a process of an earlier plan serves and is not being stopped. `launch_hash` is the plan's."""
    if seen is None or not seen.runs or seen.launch == launch_hash:
        return False
    return status.ready_since is not None and status.drain is None


def report_of_earlier(
    report: ProcessReport, status: ProcessStatus, record: Record, *, phase: ProcessPhase, reason: str, message: str
) -> ProcessReport:
    """Return the report of a plan whose files are not on the host, while the process of an earlier plan serves.

    `report` has pid, port and address of that process, `status` its health.
    """
    is_healthy = status.failed_checks < UNHEALTHY_AFTER
    adapters = adapters_of(record.earlier.argv) if record.earlier is not None else None
    earlier = EarlierProcess(phase=ProcessPhase.READY if is_healthy else ProcessPhase.UNHEALTHY, adapters=adapters)
    told = f"{message}; {GOES_ON}" if message else GOES_ON
    words = {"phase": phase, "reason": reason, "message": told, "ready": is_healthy, "earlier": earlier}
    return report.model_copy(update=words)


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    # `splitlines` would also split at other characters than a newline.
    for line in text.split("\n"):
        if line.startswith(f"process {UNIT_PREFIX}"):
            blocks.append((line.partition(" ")[2].strip(), []))
        elif blocks:
            blocks[-1][1].append(line)
    return blocks


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0
