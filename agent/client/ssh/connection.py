"""The connection to a host: opened at the first use, kept, and opened again after it broke. Calls `session`."""

from __future__ import annotations

import http.client
import shlex
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.client.ssh.errors import CommandRefused, SudoRefused
from agent.client.ssh.target import SshTarget

if TYPE_CHECKING:
    from agent.client.ssh.session import CommandResult, Session

COMMAND_TIMEOUT_S = 60.0
TAIL = 400
"""Number of characters from the end of a command's output that an error contains."""
_SUDO_WORDS = (
    "a password is required",
    "a terminal is required",
    "not in the sudoers",
    "may not run sudo",
    "not allowed to execute",
    "no tty present",
)
_SECRET_WORDS = ("key", "token", "password", "secret")


class SshConnection:
    """A host's connection. Thread-safe. Every method may raise the errors of `errors`."""

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self._session: Session | None = None
        self._lock = threading.Lock()
        self.opened = 0
        """Number of times that the connection was opened."""

    def close(self) -> None:
        """Close it. The next use opens it again."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def shell(
        self,
        script: str,
        *,
        what: str,
        stdin: bytes = b"",
        sudo: bool = False,
        arguments: Sequence[str] = (),
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> str:
        """Run a POSIX shell script and return its output. Raises CommandRefused if its exit code is not 0.

        `what` names the script in errors; `arguments` are its $1, $2, ….
        """
        said = self.run(["sh", "-c", script, "sh", *arguments], what=what, stdin=stdin, sudo=sudo, timeout_s=timeout_s)
        if said.code != 0:
            raise CommandRefused(f"{what} on {self.target.server.name} ended with {said.code}: {tail(said)}")
        return said.stdout.decode("utf-8", "replace")

    def run(
        self,
        argv: Sequence[str],
        *,
        what: str = "",
        stdin: bytes = b"",
        sudo: bool = False,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> CommandResult:
        """Run a command to its end, whatever its exit code. `sudo` is ignored if the target does not allow it."""
        raised = sudo and self.target.sudo
        command = shlex.join(["env", "LC_ALL=C", *(("sudo", "-n", "--") if raised else ()), *argv])
        session = self._open()
        try:
            said = session.run(command, stdin=stdin, timeout_s=timeout_s)
        except TimeoutError:
            text = what or redacted(argv)
            raise CommandRefused(f"{text} on {self.target.server.name} had not ended after {timeout_s:g} s") from None
        except Exception:
            self._drop(session)
            raise
        if raised and said.code != 0:
            self._judge_sudo(said, what or redacted(argv))
        return said

    def http(self, address: str, port: int, /, *, timeout: float) -> http.client.HTTPConnection:
        """Return an HTTP connection through SSH to an address and port, as the host itself reaches them."""
        return _Tunnelled(self, address, port, timeout)

    def session(self) -> Session:
        """Return the live session, for streams."""
        return self._open()

    def _open(self) -> Session:
        with self._lock:
            if self._session is not None and self._session.is_alive:
                return self._session
            if self._session is not None:
                self._session.close()
                self._session = None
            # Imported here, so that programs which never use SSH do not load it.
            from agent.client.ssh.session import Session

            self._session = Session(self.target)
            self.opened += 1
            return self._session

    def _drop(self, session: Session) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
        session.close()

    def _judge_sudo(self, said: CommandResult, what: str) -> None:
        words = said.stderr.decode("utf-8", "replace")
        name = self.target.server.name
        if said.code == 127 or ("sudo" in words and "not found" in words):
            raise SudoRefused(f"there is no `sudo` on {name}; install it, or set `sudo: false`")
        if words.startswith("sudo:") or any(word in words for word in _SUDO_WORDS):
            raise SudoRefused(
                f"sudo on {name} refused {what}: {tail(said)}; grant `{self.target.server.user}` NOPASSWD in "
                f"/etc/sudoers.d, or set `sudo: false`"
            )


class _Tunnelled(http.client.HTTPConnection):
    """HTTP over a channel of the SSH connection."""

    def __init__(self, connection: SshConnection, address: str, port: int, timeout: float) -> None:
        super().__init__(address, port, timeout=timeout)
        self._ssh = connection
        self._limit_s = timeout

    def connect(self) -> None:
        self.sock = self._ssh.session().channel_to(self.host, self.port, timeout_s=self._limit_s)


def tail(said: CommandResult) -> str:
    """Return the end of a command's output, in one line of limited length."""
    text = (said.stderr.strip() or said.stdout.strip()).decode("utf-8", "replace")
    return " ".join(text.split())[-TAIL:] or "it said nothing"


def redacted(argv: Sequence[str]) -> str:
    """Format a command for people, with the values of secret flags and variables hidden."""
    shown, hide = [], False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret = any(word in name.lower() for word in _SECRET_WORDS) and (argument.startswith("-") or bool(equals))
        shown.append("…" if hide else f"{name}=…" if secret and equals else argument)
        hide = secret and not equals and not hide
    text = " ".join(each if "…" in each else shlex.quote(each) for each in shown)
    return f"`{text if len(text) <= 200 else text[:199] + '…'}`"
