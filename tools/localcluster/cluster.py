"""Starts, stops and reports on a local control plane. Called by the CLI and the tests.

Each change holds a lock of the cluster's directory, and each process is recorded as soon as it runs. So commands may
overlap, be interrupted and be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.localcluster import certificates, components, processes
from tools.localcluster.layout import PORT_NAMES, Layout, State, is_free, pick_ports, write_private
from tools.toolchain import locate
from tools.versions import CONTROL_PLANE, KUBERNETES

_POLL_S = 0.05
_GRACE_S = 5.0
_STORE_AND_API = ("etcd", "kube-apiserver")


class ClusterError(Exception):
    """A command about the local cluster failed; the message contains the component and the reason."""


@dataclass(frozen=True)
class ComponentStatus:
    """The state of one component."""

    name: str
    state: str
    """`healthy`, `unhealthy` (it runs but its health check fails) or `stopped`."""
    pid: int | None
    port: int | None
    log: str


@dataclass(frozen=True)
class ClusterStatus:
    """The state of a cluster."""

    state: str
    """`up`, `down`, or `degraded` if only some components are healthy."""
    directory: str
    server: str | None
    kubeconfig: str
    version: str
    components: tuple[ComponentStatus, ...]


def default_directory() -> Path:
    """Return the directory of a user's cluster if the user names none."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".local" / "state") / "herdsman" / "cluster"


class LocalCluster:
    """One control plane in one directory, on separate ports. Several can run at the same time."""

    def __init__(self, directory: Path, *, components: Sequence[str] = CONTROL_PLANE) -> None:
        """Set the directory and, for a part of the control plane, its components."""
        unknown = set(components) - set(CONTROL_PLANE)
        if unknown:
            raise ValueError(f"no such component: {', '.join(sorted(unknown))}")
        self.layout = Layout(directory.expanduser().resolve())
        self._components = tuple(name for name in CONTROL_PLANE if name in components)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it exists after the first `up`."""
        return self.layout.kubeconfig

    @property
    def server(self) -> str:
        """The URL of the API.

        Raises:
            ClusterError: the cluster was never up.
        """
        return f"https://127.0.0.1:{self._port('kube-apiserver', State.read(self.layout.state))}"

    def up(self, *, timeout_s: float = 60.0) -> tuple[str, ...]:
        """Start the components that do not run and wait until all are healthy; return the started ones.

        Raises:
            ToolMissing: a program is not on this machine.
            ClusterError: a component ended at once or was not healthy in time.
        """
        with self._locked():
            state = State.read(self.layout.state)
            missing = [name for name in self._components if self._find(name, state) is None]
            self._prepare(state, missing)
            deadline = time.monotonic() + timeout_s
            # The other components exit if the API does not answer at once, so they start second.
            for group in (
                [name for name in self._components if name in _STORE_AND_API],
                [name for name in self._components if name not in _STORE_AND_API],
            ):
                for name in group:
                    if name in missing:
                        self._spawn(name, state)
                self._await_healthy(group, state, deadline)
            if "kube-controller-manager" in missing:
                self._await_service_account(state, deadline)
            return tuple(missing)

    def down(self, *, purge: bool = False) -> tuple[str, ...]:
        """Stop all processes of this cluster and no others; return the components that ran.

        The data stays unless `purge` is true. A node of the cluster stops first, with its pods.
        """
        if not self.layout.directory.is_dir():
            return ()
        from tools.node import lifecycle  # imported here, because a node uses this package
        from tools.node.layout import node_layout

        with self._locked():
            lifecycle.stop(node_layout(self.layout.directory), purge=purge)
            state = State.read(self.layout.state)
            running = tuple(name for name in CONTROL_PLANE if self._find(name, state) is not None)
            for group in (CONTROL_PLANE[2:], CONTROL_PLANE[1:2], CONTROL_PLANE[:1]):
                records = [state.processes[name] for name in group if name in running]
                processes.end(records, self.layout.directory, grace_s=_GRACE_S)
            state.processes.clear()
            if self.layout.state.is_file():
                state.write(self.layout.state)
            if purge:
                self.layout.purge()
            return running

    def status(self) -> ClusterStatus:
        """Return the state of every process after a health check; changes nothing."""
        state = State.read(self.layout.state)
        found = tuple(self._component_status(name, state) for name in self._components)
        if all(component.state == "healthy" for component in found):
            summary = "up"
        elif all(component.state == "stopped" for component in found):
            summary = "down"
        else:
            summary = "degraded"
        port = state.ports.get("kube-apiserver")
        return ClusterStatus(
            state=summary,
            directory=str(self.layout.directory),
            server=f"https://127.0.0.1:{port}" if port else None,
            kubeconfig=str(self.kubeconfig),
            version=KUBERNETES,
            components=found,
        )

    def start(self, component: str, *, timeout_s: float = 30.0) -> None:
        """Start one component and wait until it is healthy.

        Raises:
            ToolMissing, ClusterError: as `up`.
        """
        with self._locked():
            state = State.read(self.layout.state)
            if self._find(component, state) is None:
                self._spawn(component, state)
            self._await_healthy([component], state, time.monotonic() + timeout_s)

    def kill(self, component: str) -> None:
        """Kill one component, as a crash would."""
        with self._locked():
            state = State.read(self.layout.state)
            record = state.processes.pop(component, None)
            if record is not None and processes.send(record, self.layout.directory, signal.SIGKILL):
                processes.end([record], self.layout.directory, grace_s=_GRACE_S)
            state.write(self.layout.state)

    def restart_component(self, component: str, *, timeout_s: float = 30.0) -> None:
        """Stop one component, start it again and wait until it is healthy.

        Raises:
            ToolMissing, ClusterError: as `up`.
        """
        with self._locked():
            state = State.read(self.layout.state)
            if component in state.processes:
                processes.end([state.processes[component]], self.layout.directory, grace_s=_GRACE_S)
            self._spawn(component, state)
            self._await_healthy([component], state, time.monotonic() + timeout_s)

    def pause(self, component: str) -> None:
        """Freeze one component: it keeps its connections and does not answer until `resume`."""
        self._signal(component, signal.SIGSTOP)

    def resume(self, component: str) -> None:
        """Continue a frozen component."""
        self._signal(component, signal.SIGCONT)

    def pid(self, component: str) -> int | None:
        """Return the process id of a component; None if it does not run."""
        process = self._find(component, State.read(self.layout.state))
        return process.pid if process else None

    def write_kubeconfig(self, path: Path, *, user: str, groups: Sequence[str] = ()) -> None:
        """Write a kubeconfig of another user with the rights that RBAC grants to the name and the groups."""
        pair = certificates.issue_client(self.layout.pki, user=user, groups=groups)
        authority = (self.layout.pki / "ca.crt").read_text(encoding="utf-8")
        write_private(path, components.kubeconfig(server=self.server, authority=authority, pair=pair, user=user))

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context with the administrator's certificate, for HTTPS to `server`."""
        return self._context("ca", certificates.ADMIN)

    def _prepare(self, state: State, missing: Sequence[str]) -> None:
        layout = self.layout
        for name in missing:
            locate(name)  # raises before anything is written or started
        certificates.ensure(layout.pki)
        layout.logs.mkdir(exist_ok=True)
        absent = [name for name in PORT_NAMES if name not in state.ports]
        if len(missing) == len(self._components):
            # No component runs, so a port that another program took can be replaced.
            absent += [name for name, port in state.ports.items() if not is_free(port)]
        state.ports.update(pick_ports(absent, taken=state.ports.values()))
        state.write(layout.state)
        write_private(layout.pki / "authentication.json", json.dumps(components.AUTHENTICATION_CONFIGURATION))
        self._write_kubeconfig(layout.kubeconfig, certificates.ADMIN, state)
        for name in CONTROL_PLANE:
            if target := components.component_kubeconfig(name, layout):
                client, path = target
                self._write_kubeconfig(path, client, state)

    def _write_kubeconfig(self, path: Path, client: str, state: State) -> None:
        text = components.kubeconfig(
            server=f"https://127.0.0.1:{self._port('kube-apiserver', state)}",
            authority=(self.layout.pki / "ca.crt").read_text(encoding="utf-8"),
            pair=certificates.read(self.layout.pki, client),
            user=client,
        )
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_private(path, text)

    def _spawn(self, name: str, state: State) -> None:
        port = self._port(name, state)
        if not is_free(port):
            raise ClusterError(
                f"another program uses port {port} of {name}; run `herdsman cluster down`, then `herdsman cluster up`"
            )
        program = locate(name)
        arguments = components.arguments(name, self.layout, state.ports)
        try:
            record = processes.spawn(program, arguments, log=self.layout.log(name))
        except OSError as error:
            raise ClusterError(f"{name} did not start: {error}") from error
        state.processes[name] = record
        state.write(self.layout.state)

    def _await_healthy(self, names: Sequence[str], state: State, deadline: float) -> None:
        pending = list(names)
        while True:
            for name in tuple(pending):
                if self._find(name, state) is None:
                    raise ClusterError(f"{name} exited right after its start; {self._last_words(name)}")
                if self._is_healthy(name, state):
                    pending.remove(name)
            if not pending:
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{pending[0]} runs, but did not become healthy in time; {self._last_words(pending[0])}"
                )
            time.sleep(_POLL_S)

    def _await_service_account(self, state: State, deadline: float) -> None:
        # Until the controllers have made it, the API refuses all pods of the namespace `default`.
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        port = self._port("kube-apiserver", state)
        while _status_of(port, path, self.ssl_context()) != http.client.OK:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the default service account was not created in time; "
                    f"{self._last_words('kube-controller-manager')}"
                )
            time.sleep(_POLL_S)

    def _is_healthy(self, name: str, state: State) -> bool:
        if name == "etcd":
            context, path = self._context("etcd-ca", "etcd-client"), "/health"
        else:
            context, path = self.ssl_context(), components.HEALTH_PATHS[name]
        return _status_of(self._port(name, state), path, context) == http.client.OK

    def _component_status(self, name: str, state: State) -> ComponentStatus:
        process = self._find(name, state)
        healthy = process is not None and self._is_healthy(name, state)
        return ComponentStatus(
            name=name,
            state="healthy" if healthy else "unhealthy" if process else "stopped",
            pid=process.pid if process else None,
            port=state.ports.get(name),
            log=str(self.layout.log(name)),
        )

    def _context(self, authority: str, client: str) -> ssl.SSLContext:
        pki = self.layout.pki
        context = ssl.create_default_context(cafile=str(pki / f"{authority}.crt"))
        context.load_cert_chain(str(pki / f"{client}.crt"), str(pki / f"{client}.key"))
        return context

    def _find(self, name: str, state: State) -> psutil.Process | None:
        return processes.find(state.processes.get(name), self.layout.directory)

    def _signal(self, component: str, number: signal.Signals) -> None:
        state = State.read(self.layout.state)
        if not processes.send(state.processes.get(component), self.layout.directory, number):
            raise ClusterError(f"{component} does not run")

    def _port(self, name: str, state: State) -> int:
        try:
            return state.ports[name]
        except KeyError:
            raise ClusterError(
                f"the cluster in {self.layout.directory} was never started; run `herdsman cluster up`"
            ) from None

    def _last_words(self, name: str) -> str:
        log = self.layout.log(name)
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        except FileNotFoundError:
            lines = []
        return f"the end of {log}:\n" + "\n".join(lines)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.layout.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.layout.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _status_of(port: int, path: str, context: ssl.SSLContext, *, timeout_s: float = 2.0) -> int | None:
    """Return the HTTP status of a GET on loopback; None if there is no answer."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
