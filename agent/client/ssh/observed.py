"""How all processes of a host are, by one command; and what that means for each. Pure.

The command is `scripts/look.sh`: it goes through the records of the store and asks the service manager about the unit
of each.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from agent.client.ssh.layout import UNIT_PREFIX, Record, read_record

_NAMES = ("record64", "proved", "launch", "start", "started", "installed", "unit")


@dataclass(frozen=True)
class ObservedProcess:
    """One process as the host shows it."""

    record: Record
    active: str = "inactive"
    """systemd's word: active, activating, deactivating, failed, inactive."""
    pid: int = 0
    restarts: int = 0
    result: str = ""
    launch: str = ""
    """The launch hash that the running process was started by."""
    installed: str = ""
    """The one in the unit's file."""
    unit: str = ""
    """Checksum of the unit's file; empty: there is none."""
    started: str = ""
    """When the process was started, by the host's wall clock, which may be set meanwhile."""
    started_in_boot: str = ""
    """The boot, and when in it the process was started: ticks of the kernel, or the number of launchd's start."""
    proved: str = ""
    """The start that has answered a completion, as `start` or `former_start` names it."""

    @property
    def runs(self) -> bool:
        return self.active == "active" and self.pid > 0

    @property
    def start(self) -> str:
        """Tells this start of the process from any other."""
        return f"{self.pid} {self.launch} {self.started_in_boot}" if self.started_in_boot else self.former_start

    @property
    def former_start(self) -> str:
        """Name the start as earlier versions did, which may have written it down."""
        return f"{self.pid} {self.launch} {self.started}"

    @property
    def is_proved(self) -> bool:
        """Tell whether this start has answered a completion."""
        return self.proved != "" and self.proved in (self.start, self.former_start)


def read_processes(text: str) -> tuple[dict[str, ObservedProcess], tuple[str, ...]]:
    """Read what the script said: processes by key, and units whose record cannot be read."""
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


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    # `splitlines` knows more ends of lines than a newline.
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
