"""Replaces `docker` on machines without Docker, so that tests can drive the real kind. It is run as a program.

It implements the commands that kind 0.33 runs to create a cluster, load images and delete the cluster. Behind it is a
control plane of the tests, with or without a real node:

- `docker run` starts no container. It records the arguments, and publishes ports by relays to the real node.
- In the "container", `kubeadm init` marks the nodes as kubeadm does. `kubectl` and `ctr` are the real ones.
- kind's node image, its systemd, kubeadm, network plugin and storage class do not exist here.

`install` writes the program. The file `calls` in its folder records each call.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MANIFEST = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: kube-system}\n"
_NO_CONTAINERD = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\nsnapshotter = "overlayfs"\n'


def install(
    folder: Path,
    *,
    kubeconfig: Path,
    kubectl: Path,
    server: str,
    version: str,
    ctr: Sequence[str] = (),
    snapshotter: str = "overlayfs",
    node_address: str = "127.0.0.1",
) -> Path:
    """Write the program `docker` into a folder and return it; `ctr` is the command for the node's containerd."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "kubeconfig": str(kubeconfig),
        "kubectl": str(kubectl),
        "server": server,
        "version": version,
        "ctr": list(ctr),
        "snapshotter": snapshotter,
        "node_address": node_address,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "{folder}" "$@"\n')
    program.chmod(0o755)
    return program


def containers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the containers that exist: arguments, labels, image and published ports by name."""
    file = folder / "containers.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


class _Refused(Exception):
    """kind ran a command that the replacement does not implement."""


class _Docker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())

    def answer(self, words: list[str]) -> int:
        with (self.folder / "calls").open("a") as calls:
            calls.write(json.dumps(words) + "\n")
        match words:
            case ["-v"]:
                print("Docker version 0.0.0, build stand-in")
            case ["info", *options]:
                self._info(options[-1] if options else "")
            case ["ps", "-a", "--filter", label, "--format", shown]:
                self._ps(label.removeprefix("label="), shown)
            case ["inspect", "--type=image", image]:
                return 0 if image in self._pulled() else 1
            case ["pull", image]:
                (self.folder / "pulled").open("a").write(f"{image}\n")
            case ["inspect", "--format" | "-f", shown, name]:
                self._inspect(shown, containers(self.folder)[name])
            case ["network", "ls", *_]:
                print("stand-in-network")
            case ["run", "--name", name, *options]:
                self._run(name, options)
            case ["logs", "-f", _]:
                print("Reached target Multi-User System.")
            case ["exec", "--privileged", *rest]:
                return self._exec(rest)
            case ["rm", "-f", "-v", *names]:
                self._remove(names)
            case _:
                raise _Refused(words)
        return 0

    def _pulled(self) -> list[str]:
        file = self.folder / "pulled"
        return file.read_text().splitlines() if file.exists() else []

    def _info(self, shown: str) -> None:
        answers = {
            "{{json .}}": json.dumps({"CgroupDriver": "systemd", "CgroupVersion": "2", "MemoryLimit": True}),
            "'{{json .SecurityOptions}}'": "'[]'",
            "{{.Driver}}": "overlay2",
            "{{json .DriverStatus }}": '[["Backing Filesystem","extfs"]]',
            "": "",
        }
        print(answers[shown])

    def _ps(self, label: str, shown: str) -> None:
        key, equals, value = label.partition("=")
        for name, container in containers(self.folder).items():
            if container["labels"].get(key) == value if equals else key in container["labels"]:
                print(name if shown == "{{.Names}}" else container["labels"][key])

    def _inspect(self, shown: str, container: dict[str, Any]) -> None:
        if match := re.search(r'\.Config\.Labels "([^"]+)"', shown):
            print(container["labels"].get(match[1], ""))
        elif ".NetworkSettings.Ports" in shown:
            host, _, port = self.settings["server"].removeprefix("https://").rpartition(":")
            print(f"{host}\t{port}")
        elif ".NetworkSettings.Networks" in shown:
            print(f"{self.settings['node_address']},")
        else:
            raise _Refused(shown)

    def _run(self, name: str, options: list[str]) -> None:
        labels = dict(options[at + 1].split("=", 1) for at, word in enumerate(options) if word == "--label")
        published = [word.removeprefix("--publish=") for word in options if word.startswith("--publish=")]
        relays = []
        for binding in published:
            host, port, inner = binding.removesuffix("/TCP").rsplit(":", 2)
            if inner != "6443":
                command = [sys.executable, __file__, "relay", host, port, self.settings["node_address"], inner]
                # kind waits until all copies of the outputs of `docker run` are closed.
                nothing = subprocess.DEVNULL
                relay = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
                relays.append(relay.pid)
        made = {"labels": labels, "image": options[-1], "published": published, "relays": relays, "arguments": options}
        self._write({**containers(self.folder), name: made})

    def _remove(self, names: list[str]) -> None:
        found = containers(self.folder)
        for name in names:
            for relay in found.pop(name)["relays"]:
                os.kill(relay, signal.SIGTERM)
        self._write(found)

    def _write(self, found: dict[str, dict[str, Any]]) -> None:
        (self.folder / "containers.json").write_text(json.dumps(found))

    # --- inside a node ---

    def _exec(self, words: list[str]) -> int:
        while words[0] in ("-i", "-e"):
            words = words[1:] if words[0] == "-i" else words[2:]
        match words[1:]:
            case ["cat", file]:
                sys.stdout.write(self._file(file))
            case ["mkdir", "-p", _]:
                pass
            case ["cp", "/dev/stdin", file]:
                self._inside(file).write_bytes(sys.stdin.buffer.read())
            case ["kubeadm", "init", *_]:
                self._kubectl(
                    "taint", "nodes", "--all", "--overwrite", "node-role.kubernetes.io/control-plane=:NoSchedule"
                )
                excluded = "node.kubernetes.io/exclude-from-external-load-balancers="
                return self._kubectl("label", "nodes", "--all", "node-role.kubernetes.io/control-plane=", excluded)
            case ["kubectl", *arguments]:
                return self._kubectl(*(word for word in arguments if not word.startswith("--kubeconfig=")))
            case ["containerd", "config", "dump"]:
                print(_NO_CONTAINERD.replace("overlayfs", self.settings["snapshotter"]))
            case ["ctr", *arguments] if arguments[-1] == "-":
                return self._import(arguments)
            case _:
                raise _Refused(words)
        return 0

    def _inside(self, file: str) -> Path:
        place = self.folder / "files" / file.lstrip("/").replace("/", "_")
        place.parent.mkdir(exist_ok=True)
        return place

    def _file(self, file: str) -> str:
        match file:
            case "/kind/version":
                return f"v{self.settings['version']}"
            case "/etc/kubernetes/admin.conf":
                return Path(self.settings["kubeconfig"]).read_text()
            case "/kind/manifests/default-cni.yaml" | "/kind/manifests/default-storage.yaml":
                return _MANIFEST % Path(file).stem
        return self._inside(file).read_text()

    def _kubectl(self, *arguments: str) -> int:
        command = [self.settings["kubectl"], f"--kubeconfig={self.settings['kubeconfig']}", *arguments]
        return subprocess.run(command, check=False).returncode

    def _import(self, arguments: list[str]) -> int:
        if self.settings["ctr"]:
            return subprocess.run([*self.settings["ctr"], *arguments], check=False).returncode
        self._inside("imported.tar").write_bytes(sys.stdin.buffer.read())
        return 0


def _relay(host: str, port: str, target: str, target_port: str) -> None:
    """Forward connections until the process is ended."""
    with socket.create_server((host, int(port))) as server:
        while True:
            accepted, _ = server.accept()
            try:
                reached = socket.create_connection((target, int(target_port)), timeout=30)
            except OSError:
                accepted.close()
                continue
            reached.settimeout(None)
            for source, sink in ((accepted, reached), (reached, accepted)):
                threading.Thread(target=_pass, args=(source, sink), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


def main(words: list[str]) -> int:
    """Run one command of `docker`, or a relay."""
    if words[0] == "relay":
        _relay(*words[1:])
    try:
        return _Docker(Path(words[0])).answer(words[1:])
    except _Refused as refused:
        print(f"the stand-in of docker does not know: {refused}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
