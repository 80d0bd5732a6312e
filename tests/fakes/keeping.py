"""Keeps a real process running in the background, as systemd and launchd do. Uses the standard library only.

The fakes `systemctl` and `launchctl` in this folder start one keeper for each service, and communicate with it by
signals and a state file. All processes of a service remain descendants of its keeper, as the processes of a unit remain
in its cgroup.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36


def state_directory(script: str, name: str) -> Path:
    """Return the state folder of a fake: $FAKE_SERVICES, else a folder beside the path by which it was called.

    That path may be a link to the script in this folder.
    """
    own = Path(os.environ.get("FAKE_SERVICES", "") or Path(script).absolute().parent / f"{name}-state")
    own.mkdir(parents=True, exist_ok=True)
    return own


def read(path: Path) -> dict[str, Any]:
    """Read a JSON file; an empty dict if there is none."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def write(path: Path, value: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


class Kept:
    """One service of the fakes: its spec, and the last state that its keeper wrote."""

    def __init__(self, directory: Path, name: str) -> None:
        self.spec_file = directory / f"{name}.spec.json"
        self.state_file = directory / f"{name}.now.json"

    def state(self) -> dict[str, Any]:
        """Return `active`, `sub`, `pid`, `restarts`, `result`, `last_exit`, `keeper`; empty if it never started."""
        now = read(self.state_file)
        if now.get("keeper") and now.get("active") != "inactive" and not _alive(int(now["keeper"])):
            now.update(active="inactive", sub="dead", pid=0)
        return now

    def start(self, spec: dict[str, Any]) -> None:
        """Start the service. Keys of `spec`: argv, env, user, kill (process, mixed, group), delay_s, stop_s,
        max_starts, log.
        """
        write(self.spec_file, spec)
        self.state_file.unlink(missing_ok=True)
        subprocess.Popen(
            [sys.executable, __file__, str(self.spec_file), str(self.state_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        _until(lambda: bool(self.state()), 10)

    def stop(self) -> None:
        """Stop the service as its spec defines, and wait until it has ended."""
        now = self.state()
        if now.get("active") in (None, "inactive", "failed"):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(now["keeper"]), signal.SIGTERM)
        _until(lambda: self.state().get("active") in ("inactive", "failed"), float(read(self.spec_file)["stop_s"]) + 10)

    def restart_process(self) -> None:
        """Let the keeper stop the process and start it again, and wait for the new process."""
        before = self.state().get("pid")  # read before the signal, since the keeper may restart the process at once
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self.state()["keeper"]), signal.SIGUSR1)
        _until(lambda: self.state().get("pid") not in (0, before), 60)


def _until(condition: Any, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the fake's keeper does not answer")
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


class Keeper:
    def __init__(self, spec: dict[str, Any], state_file: Path) -> None:
        self.spec = spec
        self.state_file = state_file
        self.stopping = False
        self.again = False
        self.restarts = 0
        self.last_exit = ""

    def say(self, active: str, sub: str, pid: int = 0, result: str = "success") -> None:
        now = {"active": active, "sub": sub, "pid": pid, "result": result, "restarts": self.restarts}
        write(self.state_file, {**now, "last_exit": self.last_exit, "keeper": os.getpid()})

    def run(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "again", True))
        starts: list[float] = []
        while True:
            starts = [each for each in starts if time.monotonic() - each < 300] + [time.monotonic()]
            if self.spec["max_starts"] and len(starts) > self.spec["max_starts"]:
                return self.say("failed", "failed", result="start-limit-hit")
            code = self.once()
            if self.stopping:
                return self.say("inactive", "dead")
            self.restarts += 1
            self.say("activating", "auto-restart", result="success" if code == 0 else "exit-code")
            end = time.monotonic() + (0 if self.again else float(self.spec["delay_s"]))
            self.again = False
            while time.monotonic() < end and not self.stopping:
                self.reap(0)
                time.sleep(0.02)
            if self.stopping:
                return self.say("inactive", "dead")

    def once(self) -> int:
        """Start the process, wait for its end, and return its exit code; stop its children if the spec requires it."""
        try:
            pid = self.launch()
        except OSError as error:
            self.last_exit = f"203 {error}"
            return 203
        self.say("active", "running", pid)
        told_at, code = 0.0, None
        while code is None:
            if (self.stopping or self.again) and not told_at:
                told_at = time.monotonic()
                self.say("deactivating", "stop-sigterm", pid)
                os.kill(pid, signal.SIGTERM)
            if told_at and time.monotonic() - told_at > float(self.spec["stop_s"]):
                os.kill(pid, signal.SIGKILL)
            code = self.reap(pid)
            time.sleep(0.02)
        self.last_exit = str(code)
        if self.spec["kill"] == "mixed":
            while rest := descendants(os.getpid()):
                for each in rest:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
                self.reap(0)
        elif self.spec["kill"] == "group":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return code

    def launch(self) -> int:
        spec = self.spec
        entry = pwd.getpwnam(spec["user"]) if spec["user"] else None
        as_user: dict[str, Any] = {}
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **spec["env"]}
        if entry is not None:
            environment = {"USER": entry.pw_name, "LOGNAME": entry.pw_name, "HOME": entry.pw_dir, **environment}
            if os.geteuid() == 0 and entry.pw_uid:
                as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        with Path(spec["log"]).open("ab") as log:
            process = subprocess.Popen(
                spec["argv"],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                **as_user,
            )
        return process.pid

    def reap(self, pid: int) -> int | None:
        """Reap all children that have ended; return the exit code of `pid` if it is one of them."""
        code = None
        with contextlib.suppress(ChildProcessError):
            while True:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if not ended:
                    break
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
        return code


def descendants(pid: int) -> list[int]:
    """Find all live descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
    found, front = [], [pid]
    while front:
        front = [child for child, parent in parents.items() if parent in front]
        found += front
    return found


if __name__ == "__main__":
    Keeper(read(Path(sys.argv[1])), Path(sys.argv[2])).run()
