"""The first process in a node's namespaces: prepares them, runs containerd, kubelet and kube-proxy, and reaps.

Started by `keeper` as `python -m tools.node.inside DIRECTORY SOCKET`. When this process ends, the kernel ends all
processes in the namespaces. It ends when the keeper ends, because the other end of the socket is then closed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tools.node import configuration
from tools.node.layout import NodeLayout

# Settings that kubelet would change for the whole machine. It sees its wanted values in files that only it can see.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_RESTART_S = 1.0


def main(arguments: list[str]) -> None:
    """Run until the keeper ends."""
    layout = NodeLayout(Path(arguments[0]))
    keeper = socket.socket(fileno=int(arguments[1]))
    plan = layout.read_plan()
    _prepare_mounts(layout)
    _run("ip", "link", "set", "lo", "up")
    # The keeper, outside the namespaces, forwards these connections to the API server. Kubelet connects to the node's
    # loopback, and pods to the node's address, to which the Service `kubernetes` leads.
    listener = socket.create_server(("", plan.api_port))
    socket.send_fds(keeper, [b"listening"], [listener.fileno()])
    listener.close()
    if not keeper.recv(16):  # the keeper has made the link
        return
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _supervise(layout, configuration.commands(plan, layout), keeper)


def _prepare_mounts(layout: NodeLayout) -> None:
    # Shared within the node, so that kubelet's volume mounts appear in running containers.
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "tmpfs", "-o", "mode=0755", "herdsman", "/run")
    _run("mount", "--bind", str(layout.lib), "/var/lib")
    _run("mount", "--bind", str(layout.logs), "/var/log")
    settings = Path("/run/kernel-settings")
    settings.mkdir()
    for name, value in _KERNEL_SETTINGS.items():
        file = settings / name.replace("/", "-")
        file.write_text(value)
        _run("mount", "--bind", str(file), f"/proc/sys/{name}")


def _supervise(layout: NodeLayout, commands: dict[str, list[str]], keeper: socket.socket) -> None:
    """Keep the programs running and reap every orphaned process, until the keeper closes the socket."""
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, str] = {}
    due = dict.fromkeys(commands, 0.0)
    while True:
        now = time.monotonic()
        for name in [name for name, at in due.items() if at <= now]:
            if name == "kubelet" and not _answers(configuration.CONTAINERD_SOCKET):
                due[name] = now + 0.05  # kubelet would exit without containerd
                continue
            del due[name]
            running[_spawn(commands[name], layout.log(name))] = name
        timeout = max(0.0, min(due.values()) - now) if due else None
        ready, _, _ = select.select([keeper.fileno(), wakeup], [], [], timeout)
        if keeper.fileno() in ready:
            return
        if wakeup in ready:
            os.read(wakeup, 4096)
        for pid in _ended():
            if name := running.pop(pid, ""):
                print(f"{name} exited and is started again", flush=True)
                due[name] = time.monotonic() + _RESTART_S


def _spawn(command: list[str], log: Path) -> int:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/")
    process.returncode = 0  # `_ended` reaps it
    return process.pid


def _ended() -> list[int]:
    found: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append(pid)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
