"""What can go wrong on the way to a host over SSH, told apart by type and by reason.

    HostError
    ├── HostUnreachable
    │   └── SshUnreachable          Unreachable: no answer, or the connection broke; trying again is safe
    └── HostRefused
        ├── HostKeyRefused          HostKeyUnknown, HostKeyChanged
        ├── AuthenticationFailed    AuthenticationFailed, IdentityUnusable
        ├── CommandRefused          CommandFailed
        └── SudoRefused             SudoRefused

Raised by `session`, `machine` and `host`. Errors of paramiko and fabric never pass this border.
"""

from __future__ import annotations

from agent.client.port import HostRefused, HostUnreachable


class SshUnreachable(HostUnreachable):
    """No SSH server answered in time, or the connection broke."""

    def __init__(self, message: str) -> None:
        super().__init__("Unreachable", message)


class HostKeyRefused(HostRefused):
    """The server's key is not among those that were given for it. Nothing was sent to it."""

    def __init__(self, reason: str, message: str, *, fingerprint: str) -> None:
        super().__init__(reason, message)
        self.fingerprint = fingerprint


class AuthenticationFailed(HostRefused):
    """The server did not take the key, or the key cannot be used."""

    def __init__(self, message: str, *, reason: str = "AuthenticationFailed") -> None:
        super().__init__(reason, message)


class CommandRefused(HostRefused):
    """A command on the host ended with a code that means failure."""

    def __init__(self, message: str) -> None:
        super().__init__("CommandFailed", message)


class SudoRefused(HostRefused):
    """`sudo -n` wants a password, or does not let the user do this."""

    def __init__(self, message: str) -> None:
        super().__init__("SudoRefused", message)
