"""Downloads model files on a host over SSH: starts `scripts/fetch.sh` there, and reads its progress.

Called by `preparation`. The script continues when the connection breaks. If the script was killed, the next start
continues with the partial file.
"""

from __future__ import annotations

import ipaddress
import shlex
import string
from dataclasses import dataclass

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.errors import CommandRefused
from agent.client.ssh.layout import Layout, LayoutInvalid, local_path, web_address
from agent.client.ssh.scripts import script
from agent.contract import FilePlan
from agent.sources.errors import Reason
from agent.sources.source_policy import NOT_PUBLIC, Network, SourcePolicy

_IN_NAMES = frozenset(string.ascii_lowercase + string.digits + ".-_:")
SUM_TIMEOUT_S = 900.0
"""For the SHA-256 of a file that is already on the host."""


@dataclass(frozen=True)
class FileState:
    """The state of a file on the host."""

    path: str
    there: bool
    running: bool = False
    done_bytes: int = 0
    total_bytes: int | None = None
    failure: tuple[Reason, str] | None = None
    """The failure of the last download, if none is running."""


def read_state(text: str, path: str, wanted_sum: str | None) -> FileState:
    """Parse the host's output about a file. Without I/O."""
    said = {name: value.strip() for name, _, value in (line.partition(" ") for line in text.splitlines())}
    there = "there" in said and (not wanted_sum or said.get("sum") == wanted_sum)
    running = "running" in said
    total = said.get("total", "")
    failure = None
    if "failed" in said and not running:
        name, _, message = said["failed"].partition(" ")
        known = name in {reason.value for reason in Reason}
        failure = (Reason(name) if known else Reason.STORE_FAILED, message)
    part = said.get("there" if there else "part", "0")
    return FileState(
        path=path,
        there=there,
        running=running,
        done_bytes=int(part) if part.isdigit() else 0,
        total_bytes=int(total) if total.isdigit() else None,
        failure=failure,
    )


class Fetcher:
    """The files of one host. `policy` None: the plan may name any source."""

    def __init__(self, connection: SshConnection, layout: Layout, policy: SourcePolicy | None) -> None:
        self._connection = connection
        self._layout = layout
        self._policy = policy
        self._summed: set[tuple[str, str]] = set()
        """Local files whose checksum was correct."""

    def refusal(self, plan: FilePlan) -> tuple[Reason, str] | None:
        """Return why a file must not be downloaded at all, or None. Does not contact the host."""
        try:
            path = local_path(plan.source)
            self._layout.model(plan)
        except LayoutInvalid as error:
            return Reason.PLAN_INVALID, str(error)
        if path is not None and self._policy is not None and not self._policy.path_is_allowed(path):
            return Reason.REFUSED, (
                f"`{path}` lies below no allowed root; an operator can allow it with --allowed-host-path-roots"
            )
        host = web_address(plan.source).host if path is None else ""
        if host and self._policy is not None:
            try:
                literal = ipaddress.ip_address(host)
            except ValueError:
                return None
            if not self._policy.allows(host, literal):
                return Reason.REFUSED, f"`{host}` is not a public address; an operator can allow it"
        return None

    def state(self, plan: FilePlan) -> FileState:
        """Return the state of a file. Changes nothing."""
        path = self._layout.model(plan)
        local = local_path(plan.source) is not None
        text = self._connection.shell(script("fetch_state"), what=f"looking at {path}", arguments=[path])
        if not local:
            return read_state(text, path, plan.sha256)
        seen = read_state(text, path, None)
        if not seen.there:
            return FileState(path, False, failure=(Reason.NOT_FOUND, f"`{path}` does not exist, or cannot be read"))
        return seen

    def verify_local(self, plan: FilePlan, path: str) -> tuple[Reason, str] | None:
        """Check the SHA-256 of a file that the host already had, once. Returns None if it is correct or not given."""
        if not plan.sha256 or local_path(plan.source) is None or (path, plan.sha256) in self._summed:
            return None
        tool = 'if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi'
        try:
            said = self._connection.shell(
                tool, what=f"the SHA-256 of {path}", arguments=[path], timeout_s=SUM_TIMEOUT_S
            )
        except CommandRefused as error:
            return Reason.STORE_FAILED, error.message
        actual = said.partition(" ")[0].strip().lstrip("\\")
        if actual != plan.sha256:
            return Reason.CHECKSUM_MISMATCH, f"its SHA-256 is {actual}, the plan says {plan.sha256}"
        self._summed.add((path, plan.sha256))
        return None

    def start(self, plan: FilePlan) -> None:
        """Start or continue the download of a file, without waiting. A running download is not affected."""
        path = self._layout.model(plan)
        job = job_text(path, plan, self._policy) + script("fetch")
        self._connection.shell(
            script("fetch_start"), what=f"fetching {plan.file_name}", arguments=[path], stdin=job.encode()
        )


def job_text(path: str, plan: FilePlan, policy: SourcePolicy | None) -> str:
    """Return the variables for the script. Raises LayoutInvalid."""
    networks, names = policy.allowances() if policy is not None else ((), ())
    values = {
        "file": path,
        "source": web_address(plan.source).sent,
        "sum": plan.sha256 or "",
        "size": str(plan.size_bytes or ""),
        "guarded": "yes" if policy is not None else "",
        "private": " ".join(map(_prefix, NOT_PUBLIC)),
        "allowed": " ".join(map(_prefix, networks)),
        "names": " ".join(name for name in names if not set(name) - _IN_NAMES),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _prefix(network: Network) -> str:
    bits = format(int(network.network_address), f"0{network.max_prefixlen}b")
    return f"{network.version}:{bits[: network.prefixlen]}"
