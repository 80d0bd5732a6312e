"""One live SSH connection. It uses fabric, but trusts only the given host keys and reads no configuration files.

Imported only when a connection is opened, because fabric and paramiko take 25 MB. Called by `connection`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fabric
import paramiko

from agent.client.ssh.errors import AuthenticationFailed, HostKeyRefused, SshUnreachable
from agent.client.ssh.keys import fingerprint
from agent.client.ssh.target import SshServer, SshTarget, SshTimeouts

# Problems are reported by exceptions, and a process that does not listen yet is not a problem.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

_CHUNK = 65536
_NAP_S = (0.002, 0.1)
"""Shortest and longest wait between two checks of a channel: short for a quick command, long for a slow one."""
_KEY_CLASSES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
MOST_OUTPUT = 16 << 20
"""Most output of a command, in bytes. No command here prints more."""


@dataclass(frozen=True)
class CommandResult:
    """The result of a command. `code` is 255 if a signal or a lost channel left no exit code."""

    code: int
    stdout: bytes
    stderr: bytes


class _StrictPolicy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Compares the server's key with the given ones. Always called, because paramiko gets no known keys."""

    def __init__(self, server: SshServer) -> None:
        self._server = server

    def missing_host_key(self, _client: Any, _hostname: str, key: Any) -> None:
        blob, server = key.asbytes(), self._server
        seen = f"{key.get_name()} {fingerprint(blob)}"
        if any(blob == revoked.blob for revoked in server.known_hosts.revoked):
            raise HostKeyRefused(
                "HostKeyChanged", f"{server.name} presents a revoked host key, {seen}", fingerprint=fingerprint(blob)
            )
        if any(blob == known.blob for known in server.known_hosts.keys):
            return
        same_type = [known for known in server.known_hosts.keys if known.type == key.get_name()]
        if same_type:
            raise HostKeyRefused(
                "HostKeyChanged",
                f"{server.name} presents the host key {seen}, but the known key is {same_type[0].fingerprint}: either "
                f"an attacker intercepts the connection, or the host was installed again. Correct its known hosts "
                f"only after you have excluded an attack",
                fingerprint=fingerprint(blob),
            )
        raise HostKeyRefused(
            "HostKeyUnknown",
            f"{server.name} presents the host key {seen}, which is not among its known hosts; compare it with the "
            f"host's key (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there) and add it",
            fingerprint=fingerprint(blob),
        )


class _Connection(fabric.Connection):  # type: ignore[misc]
    """Fabric's connection with a timeout for the channel through the bastion."""

    timeouts = SshTimeouts()

    def open_gateway(self) -> Any:
        gateway = self.gateway
        gateway.open()
        return gateway.transport.open_channel(
            "direct-tcpip", (self.host, int(self.port)), ("127.0.0.1", 0), timeout=self.timeouts.channel_s
        )


class Session:
    """One connection, opened by the constructor. Thread-safe."""

    def __init__(self, target: SshTarget) -> None:
        """Raises SshUnreachable, HostKeyRefused, AuthenticationFailed."""
        self._target = target
        self._key = _identity(target)
        self._gateway = self._connect(target.bastion, None) if target.bastion is not None else None
        try:
            self._connection = self._connect(target.server, self._gateway)
        except BaseException:
            if self._gateway is not None:
                self._gateway.close()
            raise

    @property
    def is_alive(self) -> bool:
        transport = self._connection.transport
        return bool(transport is not None and transport.is_active())

    def close(self) -> None:
        self._connection.close()
        if self._gateway is not None:
            self._gateway.close()

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        """Run a line of shell to its end. Raises TimeoutError, or SshUnreachable if the connection breaks."""
        deadline = time.monotonic() + timeout_s
        name = self._target.server.name
        try:
            channel = self._connection.transport.open_session(timeout=self._target.timeouts.channel_s)
            with channel:
                # paramiko waits for the server's answer without a timeout.
                guard = threading.Timer(self._target.timeouts.channel_s, channel.close)
                guard.daemon = True
                guard.start()
                try:
                    channel.exec_command(command)
                finally:
                    guard.cancel()
                return _exchange(channel, stdin, deadline)
        except _TooLong:
            raise TimeoutError(f"no end after {timeout_s:g} s") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise SshUnreachable(f"the connection to {name} broke: {_words(error)}") from error

    def channel_to(self, address: str, port: int, *, timeout_s: float) -> socket.socket:
        """Open a stream to an address as the host reaches it (direct-tcpip).

        Raises OSError if nothing listens there.
        """
        try:
            transport = self._connection.transport
            channel = transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=timeout_s)
        except paramiko.ChannelException as error:
            raise ConnectionRefusedError(f"no server listens on {address}:{port}") from error
        except (paramiko.SSHException, EOFError) as error:
            raise ConnectionError(_words(error)) from error
        channel.settimeout(timeout_s)
        return channel  # type: ignore[no-any-return]

    def _connect(self, server: SshServer, gateway: _Connection | None) -> _Connection:
        timeouts = self._target.timeouts
        # Neither ~/.ssh/config nor fabric's files are read. Only the target counts.
        config = fabric.Config(
            lazy=True, ssh_config=paramiko.SSHConfig(), overrides={"load_ssh_configs": False, "forward_agent": False}
        )
        connection = _Connection(
            host=server.address,
            user=server.user,
            port=server.port,
            gateway=gateway,
            config=config,
            connect_timeout=timeouts.connect_s,
            connect_kwargs={
                "pkey": self._key,
                "allow_agent": False,
                "look_for_keys": False,
                "banner_timeout": timeouts.greet_s,
                "auth_timeout": timeouts.greet_s,
                "channel_timeout": timeouts.channel_s,
                "transport_factory": lambda *args, **kwargs: _transport(server, *args, **kwargs),
            },
        )
        connection.timeouts = timeouts
        connection.client.set_missing_host_key_policy(_StrictPolicy(server))
        try:
            connection.open()
        except HostKeyRefused:
            connection.client.close()
            raise
        except paramiko.AuthenticationException as error:
            connection.client.close()
            source = self._target.identity_file or "the Secret's key"
            raise AuthenticationFailed(
                f"{server.name} refuses the key ({source}, {self._key.fingerprint}): {_words(error)}; add its "
                "public half to ~/.ssh/authorized_keys there"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            connection.client.close()
            raise SshUnreachable(f"{server.name} did not answer: {_words(error)}") from error
        connection.transport.set_keepalive(int(timeouts.keepalive_s))
        _tune(connection.transport.sock, 3 * timeouts.keepalive_s)
        return connection


class _TooLong(Exception):
    """The deadline has passed."""


def _tune(sock: Any, give_up_s: float) -> None:
    """Disable Nagle's algorithm, and let the kernel close a connection whose peer no longer acknowledges."""
    if not isinstance(sock, socket.socket):
        return  # a channel through a bastion
    with contextlib.suppress(OSError):
        # Otherwise most commands wait 40 ms for an acknowledgement that the server delays.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up_s * 1000))


def _transport(server: SshServer, *args: Any, **kwargs: Any) -> Any:
    """Return a transport that prefers the types of the known keys, because a server may have several."""
    transport = paramiko.Transport(*args, **kwargs)
    options = transport.get_security_options()
    known = {key.type for key in server.known_hosts.keys}

    def rank(offered: str) -> bool:
        return ("ssh-rsa" if offered.startswith("rsa-sha2") else offered) not in known

    options.key_types = tuple(sorted(options.key_types, key=rank))
    return transport


def _exchange(channel: Any, stdin: bytes, deadline: float) -> CommandResult:
    """Send the input and read the output until the command has ended."""
    out, err, nap = bytearray(), bytearray(), _NAP_S[0]
    rest = memoryview(stdin)
    if not rest:
        channel.shutdown_write()
    while True:
        moved = False
        if rest and channel.send_ready():
            rest, moved = _send(channel, rest), True
        while channel.recv_ready():
            out += channel.recv(_CHUNK)
            moved = True
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(_CHUNK)
            moved = True
        if len(out) + len(err) > MOST_OUTPUT:
            raise OSError("the output of a command is too long")
        if channel.exit_status_ready() and channel.eof_received and not channel.recv_ready():
            break
        if channel.closed and not moved:
            break
        if time.monotonic() > deadline:
            raise _TooLong
        nap = _NAP_S[0] if moved else min(_NAP_S[1], nap * 1.5)
        if not moved:
            time.sleep(nap)
    while channel.recv_stderr_ready():
        err += channel.recv_stderr(_CHUNK)
    if not channel.exit_status_ready():
        raise EOFError("it was closed before the command had ended")
    code = channel.recv_exit_status()
    return CommandResult(code if code >= 0 else 255, bytes(out), bytes(err))


def _send(channel: Any, rest: memoryview) -> memoryview:
    """Send a part of the input, and return what is left: nothing for a command that ended before it read all."""
    try:
        rest = rest[channel.send(rest[:_CHUNK]) :]
        if not rest:
            channel.shutdown_write()
    except OSError:
        if not channel.closed:
            raise
        return rest[:0]  # the command's exit status and words tell why
    return rest


def _identity(target: SshTarget) -> Any:
    """Load the private key from memory or from its file. The key is never written. Raises AuthenticationFailed."""
    where = target.identity_file or "the Secret's key `ssh-privatekey`"
    try:
        text = target.identity or Path(target.identity_file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthenticationFailed(
            f"cannot read the key {where}: {_words(error)}", reason="IdentityUnusable"
        ) from error
    if target.identity_file and not target.identity:
        _refuse_open_key(target.identity_file)
    for kind in _KEY_CLASSES:
        try:
            return kind.from_private_key(io.StringIO(text))
        except paramiko.PasswordRequiredException:
            raise AuthenticationFailed(
                f"{where} is encrypted with a passphrase, which Herdsman cannot enter; use a key without a passphrase",
                reason="IdentityUnusable",
            ) from None
        except (paramiko.SSHException, ValueError, IndexError, TypeError):
            continue
    raise AuthenticationFailed(
        f"{where} contains no private key of type ed25519, ecdsa or rsa", reason="IdentityUnusable"
    )


def _refuse_open_key(path: str) -> None:
    mode = os.stat(Path(path).expanduser()).st_mode
    if mode & 0o004:
        raise AuthenticationFailed(
            f"all users may read the private key {path} (mode {mode & 0o777:o}); `chmod 600` it",
            reason="IdentityUnusable",
        )


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__
