"""Looks up the values of a process's secret environment variables at each start.

Called by `agent.server.processes.launching` and `agent.client.ssh.processes`. The value comes from the file
`<folder>/<namespace>/<secret>/<key>` that the host's owner put there, else from the Secret. The agent may read only
Secrets that were granted to it (`herdsman host grant-secret`). Values are never stored, and no error contains one.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from agent.contract import ProcessPlan, SecretReference
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, KubeError, NotFound
from kubeapi.kinds import SECRETS

FOLDER = Path("/etc/herdsman/secrets")
MAX_BYTES = 128 * 1024 - 1
"""Linux accepts no longer string in an environment."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The open must not block on a FIFO.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PART = re.compile(r"(?!\.{1,2}$)(?!\.\.)[-._a-zA-Z0-9]{1,253}")


class SecretUnavailable(Exception):
    """A value is not available. The message names the variable, the problem and the remedy."""


ReadFile = Callable[[tuple[str, str, str]], bytes | None]
"""Reads the file of (namespace, secret, key). Returns None if it does not exist. Raises SecretUnavailable."""


@dataclass(frozen=True)
class SecretApi:
    """The client that reads Secrets, its name for messages, and how to grant it access to a Secret."""

    who: str
    grant: str
    """The command to run, with `{secret}` for `namespace/name`."""
    client: KubeClient


class SecretValues:
    """Looks up the values for one host. Thread-safe."""

    def __init__(self, folder: PurePath, read_file: ReadFile, api: SecretApi | None) -> None:
        """`read_file` reads below `folder`. `api` None: there is no cluster, so only files can provide values."""
        self._folder = folder
        self._read_file = read_file
        self._api = api
        self._known: dict[tuple[str, str], dict[str, bytes]] = {}
        """The last read Secrets in memory, so that a crashed process starts again while the API server
        is unavailable."""

    @staticmethod
    def of_agent(folder: Path, *, host: str, client: KubeClient | None) -> SecretValues:
        """Return the lookup for this machine, with the permissions of its agent."""
        api = SecretApi("the agent", f"`herdsman host grant-secret {host} {{secret}}`", client) if client else None
        return SecretValues(folder, lambda parts: read_owned_file(folder, parts), api)

    def of(self, key: str, plan: ProcessPlan) -> dict[str, str]:
        """Return the secret variables of the process `key` (`namespace/name`). Raises SecretUnavailable."""
        namespace = key.partition("/")[0]
        found: dict[str, str] = {}
        for name, reference in sorted((plan.secret_env or {}).items()):
            try:
                value = self._value(namespace, reference)
            except SecretUnavailable as failure:
                raise SecretUnavailable(f"env[{name}].valueFrom.secretKeyRef: {failure}") from None
            if value is not None:
                found[name] = value
        return found

    def _value(self, namespace: str, reference: SecretReference) -> str | None:
        path = self._folder / namespace / reference.secret / reference.key
        parts = (namespace, reference.secret, reference.key)
        if not all(_PART.fullmatch(part) for part in parts):
            raise SecretUnavailable(f"`{'/'.join(parts)[:200]}` is not a namespace, Secret and key")
        raw = self._read_file(parts)
        if raw is not None:
            # Editors and `echo` end a file with a newline, which is not part of a token.
            raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        else:
            raw = self._of_secret(namespace, reference, path)
        if raw is None:
            return None
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            raise SecretUnavailable("the value is not UTF-8 text, so it cannot be an environment variable") from None
        if "\0" in value or len(raw) > MAX_BYTES:
            raise SecretUnavailable(f"the value contains a NUL or has more than {MAX_BYTES} bytes")
        return value

    def _of_secret(self, namespace: str, reference: SecretReference, path: PurePath) -> bytes | None:
        where, api = f"Secret `{namespace}/{reference.secret}`", self._api
        if api is None:
            if reference.optional:
                return None
            raise SecretUnavailable(f"file {path} does not exist; write the value to it, mode 0600")
        try:
            data = self._read(api.client, namespace, reference.secret)
        except Forbidden:
            # This fails even if the reference is optional, as in pods, because the agent cannot know whether the Secret
            # exists.
            grant = api.grant.format(secret=f"{namespace}/{reference.secret}")
            raise SecretUnavailable(
                f"{api.who} may not read {where}: {grant}, or put the value into {path} on the host, mode 0600"
            ) from None
        except NotFound:
            if reference.optional:
                return None
            raise SecretUnavailable(f"{where} does not exist; create it, or write the value to {path}") from None
        except KubeError as error:
            raise SecretUnavailable(f"{where} cannot be read now: {error}") from None
        if reference.key not in data:
            if reference.optional:
                return None
            raise SecretUnavailable(f"{where} has no key `{reference.key}`; add it, or put the value into {path}")
        return data[reference.key]

    def _read(self, client: KubeClient, namespace: str, name: str) -> dict[str, bytes]:
        try:
            data = client.get(SECRETS, namespace, name).get("data") or {}
        except (Forbidden, NotFound):
            self._known.pop((namespace, name), None)
            raise
        except KubeError as error:
            known = self._known.get((namespace, name))
            if known is None or (isinstance(error, ApiError) and 400 <= error.status < 500):
                raise
            return known
        self._known[namespace, name] = decoded = {each: _decoded(text) for each, text in data.items()}
        return decoded


def read_owned_file(folder: Path, parts: tuple[str, ...]) -> bytes | None:
    """Read `folder/parts…`, which must contain no link and be closed to all users but root and this user.

    Returns None if the file does not exist. Raises SecretUnavailable if another user could read the file or could have
    put it there.
    """
    path = folder.joinpath(*parts)
    opened: list[int] = []
    try:
        try:
            opened.append(os.open(folder, _DIRECTORY))
        except PermissionError:
            return None  # the folder belongs to another user, so this agent has no files
        at = folder
        for part in parts[:-1]:
            _check_owner(opened[-1], at, forbidden=0o022)
            opened.append(os.open(part, _DIRECTORY, dir_fd=opened[-1]))
            at = at / part
        _check_owner(opened[-1], at, forbidden=0o022)
        opened.append(os.open(parts[-1], _FILE, dir_fd=opened[-1]))
        _check_file(opened[-1], path)
        return _content(opened[-1], path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO):
            raise SecretUnavailable(f"{path} is a link, or a part of the path is not a directory") from None
        raise SecretUnavailable(f"{path} cannot be read: {error.strerror}") from None
    finally:
        for each in opened:
            os.close(each)


def _check_owner(descriptor: int, path: Path, *, forbidden: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        raise SecretUnavailable(f"{path} belongs neither to root nor to the agent's user; change its owner")
    if found.st_mode & forbidden:
        raise SecretUnavailable(
            f"other users may {'write' if forbidden == 0o022 else 'read'} {path} (mode "
            f"{stat.S_IMODE(found.st_mode):04o}): "
            f"`chmod go-{'w' if forbidden == 0o022 else 'rwx'} {path}`"
        )


def _check_file(descriptor: int, path: Path) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise SecretUnavailable(f"{path} is not a regular file, or has a second hard link")
    _check_owner(descriptor, path, forbidden=0o077)


def _content(descriptor: int, path: Path) -> bytes:
    content = b""
    while len(content) <= MAX_BYTES + 2:
        piece = os.read(descriptor, MAX_BYTES + 3 - len(content))
        if not piece:
            return content
        content += piece
    raise SecretUnavailable(f"{path} has more than {MAX_BYTES} bytes")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SecretUnavailable("the API server sent a value that is not base64") from None
