"""Errors of the connection to a host over SSH, by type and reason.

    HostError
    ├── HostUnreachable
    │   └── SshUnreachable          Unreachable: no answer, or the connection broke; a retry is safe
    └── HostRefused
        ├── HostKeyRefused          HostKeyUnknown, HostKeyChanged
        ├── AuthenticationFailed    AuthenticationFailed, IdentityUnusable
        ├── CommandRefused          CommandFailed
        └── SudoRefused             SudoRefused

Raised by `session` and `connection`, which convert all errors of paramiko and fabric.
"""

from __future__ import annotations

from agent.client.port import HostRefused, HostUnreachable


class SshUnreachable(HostUnreachable):
    """No SSH server answered in time, or the connection broke."""

    def __init__(self, message: str) -> None:
        super().__init__("Unreachable", message)


class HostKeyRefused(HostRefused):
    """The server's key is not among the known ones. Nothing was sent to the server."""

    def __init__(self, reason: str, message: str, *, fingerprint: str) -> None:
        super().__init__(reason, message)
        self.fingerprint = fingerprint


class AuthenticationFailed(HostRefused):
    """The server refused the key, or the key cannot be used."""

    def __init__(self, message: str, *, reason: str = "AuthenticationFailed") -> None:
        super().__init__(reason, message)


class CommandRefused(HostRefused):
    """A command on the host ended with an exit code other than 0, or did not end in time."""

    def __init__(self, message: str) -> None:
        super().__init__("CommandFailed", message)


class SudoRefused(HostRefused):
    """`sudo -n` requires a password, or does not allow the command."""

    def __init__(self, message: str) -> None:
        super().__init__("SudoRefused", message)
