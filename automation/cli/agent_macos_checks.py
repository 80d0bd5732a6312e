"""Checks of macOS for an agent: sleep, wired memory, and LaunchAgents. Called by `agent_doctor`."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from automation.console.check import Check

LAN_HINT = (
    "macOS blocks this program from the local network: run the agent as a LaunchDaemon, not as a LaunchAgent "
    "(`sudo herdsman agent install …`), or allow the terminal in System Settings, Privacy & Security, Local Network"
)


def macos_checks() -> Iterator[Check]:
    """Check the settings of a Mac; no checks on another system."""
    if platform.system() != "Darwin":
        return
    yield from sleep_finding(_output_of("pmset", "-g"))
    yield from collector_finding(_sysctl("iogpu.disable_wired_collector"), platform.mac_ver()[0])
    places = [Path("/Library/LaunchAgents"), Path.home() / "Library/LaunchAgents"]
    yield from agent_trap([each for place in places if place.is_dir() for each in place.glob("*.plist")])


def sleep_finding(settings: str) -> Iterator[Check]:
    """Check the power settings in force, as `pmset -g` prints them: an idle Mac that sleeps counts as lost."""
    found = re.search(r"^\s*sleep\s+(\d+)", settings, re.MULTILINE)
    if found is None:
        return
    if found[1] == "0":
        yield Check("sleep", "ok", "this Mac does not sleep when idle")
    else:
        hint = "`sudo pmset -a sleep 0`, so that the agent can start a process at any time"
        detail = f"this Mac sleeps after {found[1]} min idle; the agent keeps it awake only while a process runs"
        yield Check("sleep", "warning", detail, hint)


def collector_finding(value: str | None, macos: str) -> Iterator[Check]:
    """Check macOS' collector of wired memory: from version 26 on it unwires models after a second of rest."""
    major = int(macos.partition(".")[0] or 0)
    if value is None or major < 26:
        return
    if value == "1":
        yield Check("wired memory", "ok", "macOS keeps models wired between requests")
    else:
        hint = "run `sudo sysctl iogpu.disable_wired_collector=1` now and after each boot"
        yield Check(
            "wired memory",
            "warning",
            "macOS unwires models after 1 s without requests; the next first token is slow",
            hint,
        )


def agent_trap(plists: Sequence[Path]) -> Iterator[Check]:
    """Find agents that were installed as LaunchAgents, which the local network cannot reach."""
    for path in plists:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if b"herdsman" in content and b"agent" in content:
            yield Check("launch agent", "failed", f"{path} starts an agent as a LaunchAgent", LAN_HINT)


def _sysctl(name: str) -> str | None:
    return _output_of("sysctl", "-n", name).strip() or None


def _output_of(*command: str) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""
