"""Decides which failed runs are worth a second try, and whether a lock may be broken. Called by `pulumi_engine`.

Only this module parses the CLI's messages. They are pinned with its version and covered by engine tests.
"""

from __future__ import annotations

import pathlib
import re
from enum import Enum

import psutil

from automation.engine.cli_process import CliResult, RunRecord, read_records
from automation.engine.port import StackLocked
from automation.engine.run_log import RunLog
from automation.leadership.lease_observations import FormerLoop
from automation.leadership.process_mark import is_dead, is_here

_LOCKED = "the stack is currently locked by"
_LOCK = re.compile(r"created by (?P<user>\S+)@(?P<host>\S+) \(pid (?P<pid>\d+)\) at (?P<since>\S+)")
_MISSING = re.compile(r"no stack named '[^']*' found")
_UNKNOWN_TARGET = "could not be found in the stack"
_SEALED = re.compile(
    r"the key does not fit|incorrect passphrase|secrets \(code=|getting stack configuration: .*(decrypt|secrets)"
)
_UNREADABLE = re.compile(
    r"failed to load checkpoint|could not deserialize|snapshot integrity|integrity check|invalid character|"
    r"unexpected end of JSON|json: cannot unmarshal|checksum did not match|error loading stack|unsupported checkpoint|"
    r"corrupt store"
)
# The phrases of the CLI's storage only, so that an unreachable API server is not mistaken for the backend.
_UNREACHABLE = re.compile(
    r"unable to open bucket|could not list bucket|error listing stacks|read \"\.pulumi/meta\.yaml\"|"
    r"operation error S3|(failed to load checkpoint|writing the new snapshot file|getting snapshot): .*"
    r"(dial tcp|connection re(fused|set)|i/o timeout|broken pipe|bad connection|unexpected EOF|googleapi|azblob|code=)|"
    r"failed to (ping|connect to) PostgreSQL|failed to create table|\bpq: "
)
_BROKEN_CONTENT = re.compile(r"checksum did not match")
_NOISE = re.compile(
    r"RequestID: \S*, HostID: \S*,? ?|https response error |exceeded maximum number of attempts, \d+, |StatusCode: 0, "
)
"""Parts of messages that differ in each try. With them, each try would write the condition again."""


class Remedy(Enum):
    """The action before the second try."""

    UNLOCK = "release a lock that a dead run of this loop left"
    CREATE = "create the stack again, because it was deleted"
    RELOAD = "read the stack again"
    REBUILD = "replace the stack, because its state is unreadable"
    RESEAL = "give the stack a new key, because the passphrase does not decrypt its key"


def remedy_for(log: RunLog, result: CliResult) -> Remedy | None:
    """Return the remedy for a run. None when it succeeded, was stopped, or would fail again."""
    if result.code == 0 or result.stopped:
        return None
    if _LOCKED in result.output:
        return Remedy.UNLOCK
    if is_missing(result.output):
        return Remedy.CREATE
    if any(_UNKNOWN_TARGET in error for error in log.errors):
        return Remedy.RELOAD
    if not log.done and not log.failures and is_sealed(result.output):
        return Remedy.RESEAL
    if not log.done and not log.failures and is_unreadable(result.output):
        return Remedy.REBUILD
    return None


def is_missing(output: str) -> bool:
    """Return whether the CLI reported that there is no such stack."""
    return _MISSING.search(output) is not None


def is_unreadable(output: str) -> bool:
    """Return whether the CLI reported that the stack's state is invalid."""
    return _UNREADABLE.search(output) is not None and not unreachable(output)


def is_sealed(output: str) -> bool:
    """Return whether the CLI reported that the passphrase does not open the state's key."""
    return _SEALED.search(output) is not None


def unreachable(output: str) -> str:
    """Return why the backend is unreachable, in the CLI's words without numbers that differ; empty if it is reachable.

    An unreachable backend must never count as a broken state, because a broken state is overwritten.
    """
    if _BROKEN_CONTENT.search(output) or not _UNREACHABLE.search(output):
        return ""
    line = next((line for line in output.splitlines() if _UNREACHABLE.search(line)), "")
    return _NOISE.sub("", line.strip().removeprefix("error: "))


def check_lock(
    output: str, record: pathlib.Path, *, stack: str, sole: bool, former: tuple[FormerLoop, ...] = ()
) -> tuple[RunRecord, ...]:
    """Check that every reported lock was taken by an engine of this installation that is dead. Raises StackLocked.

    Returns the records of the holders. One of these proofs is enough:

    - The record has the holder's pid and host, and the process with that pid and start time has ended.
    - The holder is on another machine or in another container, so its end is unknown, and only this process may run
      engines now (`sole`).
    - The record is on another machine, and a loop that led before, by the Lease, ran on the host in the lock.
    """
    found = list(_LOCK.finditer(output))
    if not found and _LOCKED not in output:
        return ()
    proven = []
    for lock in found:
        holder = _holder(lock, read_records(record), sole=sole) or (_predecessor(lock, former) if sole else None)
        if holder is None:
            by = f"{lock['user']}@{lock['host']} (pid {lock['pid']})"
            raise StackLocked(
                f"the state is locked by {by} since {lock['since']}, and changes wait until it is unlocked; if that "
                f"process has ended, run `herdsman state unlock {stack}`",
                by=by,
                since=lock["since"],
            )
        proven.append(holder)
    if not proven:
        raise StackLocked(
            f"the state is locked, and the lock does not name its holder; `herdsman state unlock {stack}` releases it",
            by="unknown",
            since="unknown",
        )
    return tuple(proven)


def lock_of(output: str) -> tuple[str, str] | None:
    """Return the holder and the start of the lock that the CLI reported; None when it reported none."""
    lock = _LOCK.search(output)
    if lock is not None:
        return f"{lock['user']}@{lock['host']} (pid {lock['pid']})", lock["since"]
    if _LOCKED in output or "unexpected end of JSON" in output:
        return "unknown", "unknown"
    return None


def _holder(lock: re.Match[str], records: tuple[RunRecord, ...], *, sole: bool) -> RunRecord | None:
    for entry in records:
        is_named = int(lock["pid"]) == entry.pid and lock["host"] == entry.host
        if is_named and (entry.is_over or (sole and entry.is_elsewhere)):
            return entry
    return None


def _predecessor(lock: re.Match[str], former: tuple[FormerLoop, ...]) -> RunRecord | None:
    """Return the earlier leader that left the lock. Its engine was ended before this loop could lead.

    On this machine the holder's pid must be free as well: a person may run the CLI here.
    """
    pid = int(lock["pid"])
    for loop in former:
        if loop.host == lock["host"] and (
            not is_here(loop.mark) or (is_dead(loop.mark) and not psutil.pid_exists(pid))
        ):
            return RunRecord(pid, loop.host, loop.mark, loop.mark)
    return None


def stop_leftovers(record: pathlib.Path, *, grace_s: float) -> None:
    """End CLI processes that outlived their loop: without its program they can only fail."""
    for entry in read_records(record):
        if entry.is_leftover:
            entry.stop(grace_s=grace_s)
