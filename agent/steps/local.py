"""This machine, for steps. Commands run as the current user; `sudo` is never called.

The counterpart for SSH is `agent.client.ssh.machine`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import pwd
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.steps import directories
from agent.steps.machine import COMMAND_TIMEOUT_S, CommandFailed, Facts, FileStat, Finished, MachineError, NotPermitted

_AS_ROOT = "run the same command with sudo"


class LocalMachine:
    """The machine on which this code runs (`agent.steps.machine.Machine`)."""

    @functools.cached_property
    def facts(self) -> Facts:
        uid = os.geteuid()
        try:
            entry = pwd.getpwuid(uid)
            user, home = entry.pw_name, entry.pw_dir
        except KeyError:
            user, home = str(uid), os.environ.get("HOME", "/")
        return Facts(os="darwin" if platform.system() == "Darwin" else "linux", uid=uid, user=user, home=home)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - the name that subprocess has for it
        sudo: bool = False,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Finished:
        self._allow(sudo, f"run `{argv[0]}`")
        try:
            ended = subprocess.run(list(argv), input=input or b"", capture_output=True, timeout=timeout_s, check=False)
        except FileNotFoundError:
            return Finished(127)
        except PermissionError:
            return Finished(126, b"", f"{argv[0]} is not executable".encode())
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"`{' '.join(argv)}` had not ended after {timeout_s:g} s") from None
        except OSError as error:
            raise CommandFailed(f"`{argv[0]}` could not be run: {error}") from error
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:  # noqa: ARG002 - sudo is never called
        with self._explained("read", path):
            try:
                return Path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def stat(self, path: str, *, sudo: bool = False) -> FileStat | None:  # noqa: ARG002 - sudo is never called
        with self._explained("look at", path):
            try:
                found = Path(path).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        try:
            owner = pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            owner = str(found.st_uid)
        is_file, is_directory = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
        kind = "file" if is_file else "directory" if is_directory else "other"
        return FileStat(kind=kind, mode=stat.S_IMODE(found.st_mode), owner=owner, size=found.st_size)  # type: ignore[arg-type]

    def write(self, path: str, content: bytes, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        self._allow(sudo, f"write {path}")
        with self._explained("write", path), self._directory_of(path) as (directory, target):
            draft = str(Path(target).with_name(f".{Path(target).name}.herdsman-new"))
            try:
                # O_EXCL prevents writing through a file or link of that name that another user made.
                _unlink(draft, directory)
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    if owner is not None:
                        os.fchown(file.fileno(), *_ids(owner))
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.replace(draft, target, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    _unlink(draft, directory)
                raise
            _make_durable(Path(target).parent, directory)

    def remove(self, path: str, *, sudo: bool = False) -> None:
        self._allow(sudo, f"remove {path}")
        absent = contextlib.suppress(FileNotFoundError)
        with self._explained("remove", path), absent, self._directory_of(path) as (directory, target):
            _unlink(target, directory)

    def make_directory(self, path: str, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        target = Path(path)
        self._allow(sudo, f"make {path}")
        with self._explained("make", path):
            if os.geteuid() == 0:
                with directories.opened(str(target.absolute()), make=True) as handle:
                    if owner is not None:
                        os.fchown(handle, *_ids(owner))
                    os.fchmod(handle, mode)
                return
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            target.mkdir(mode=0o700, exist_ok=True)
            if owner is not None:
                os.chown(target, *_ids(owner))
            target.chmod(mode)

    @contextlib.contextmanager
    def _directory_of(self, path: str) -> Iterator[tuple[int | None, str]]:
        """Yield the descriptor of the directory and the file's name for root, else None and the path."""
        if os.geteuid() != 0:
            yield None, path
            return
        target = Path(path).absolute()
        with directories.opened(str(target.parent)) as handle:
            yield handle, target.name

    @contextlib.contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except PermissionError:
            hint = "" if self.facts.is_root else _AS_ROOT
            raise NotPermitted(f"user `{self.facts.user}` may not {verb} {path}", hint=hint) from None
        except OSError as error:
            raise MachineError(f"could not {verb} {path}: {error.strerror or error}") from error

    def _allow(self, sudo: bool, what: str) -> None:
        if sudo and not self.facts.is_root:
            raise NotPermitted(f"user `{self.facts.user}` may not {what}: only root may", hint=_AS_ROOT)


def _ids(owner: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(owner)
    except KeyError:
        raise MachineError(f"user `{owner}` does not exist", hint="name an existing user, or create it first") from None
    return entry.pw_uid, entry.pw_gid


def _unlink(path: str, directory: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path, dir_fd=directory)


def _make_durable(path: Path, directory: int | None) -> None:
    # Without this, some file systems lose the rename if the power fails.
    descriptor = os.open(path, os.O_RDONLY, dir_fd=directory)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
