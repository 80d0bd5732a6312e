"""`herdsman agent doctor`: check everything that an agent needs on this machine, and name faults and remedies.

With options of `agent run`, it checks for an agent with these options; without, for the installed agent.
"""

from __future__ import annotations

import errno
import os
import platform
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.server.cluster.host_lease import lease_name
from agent.server.host_facts import Binaries, NoAddress, own_address
from agent.server.memory.budget import MemoryLimits, host_budget
from agent.server.memory.machine import Machine
from agent.server.processes.engine_user import USUAL
from agent.server.processes.ports import COUNT, FIRST, is_free
from agent.steps.machine import MachineError
from automation.cli.agent_installation import read_installation
from automation.cli.agent_options import STORE
from automation.cli.agent_run import run_command
from automation.cli.agent_service import DEFAULT_NAME, Name, OwnUser, this_machine
from automation.cli.agent_token_check import token_finding
from automation.cli.output import OutputFormat, complain, report_checks, size_text
from automation.console.check import Check
from automation.install import permissions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError, NotFound
from program.desired.errors import SpecInvalid
from program.desired.quantities import bytes_of

GIB = 1024**3
LITTLE_SPACE_BYTES = 20 * GIB
CLOCK_WARNING_S = 5.0
CLOCK_FAILED_S = 60.0
"""A machine whose clock is behind by more than this refuses new tokens and certificates."""
CERTIFICATE_WARNING_DAYS = 30
LLAMA_SERVER_HINT = "`brew install llama.cpp`, or `herdsman tools install llama-server`"
LAN_HINT = (
    "macOS blocks this program from the local network: run the agent as a LaunchDaemon, not as a LaunchAgent "
    "(`sudo herdsman agent install …`), or allow the terminal in System Settings, Privacy & Security, Local Network"
)

PERMISSIONS = (
    *((*request, None) for request in permissions.requests(permissions.AGENT)),
    *((*request, "system") for request in permissions.requests(permissions.AGENT_LEASES)),
)
"""The rows of the agent's roles. The last element is the namespace, if it is not the agent's."""


@dataclass(frozen=True)
class Looked:
    """The options of an agent that the checks use."""

    host: str
    store: Path
    kubeconfig: str | None
    is_kubernetes: bool
    system_namespace: str
    namespaces: tuple[str, ...]
    http_address: str
    http_port: int
    certificate: Path | None
    address: str | None
    memory_bytes: int | None
    memory_fraction: float | None
    engine_user: str | None
    as_root: bool
    """Whether the agent runs as root, or would."""


def doctor(
    context: typer.Context,
    name: Name = DEFAULT_NAME,
    own_user: OwnUser = False,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Check this machine for an agent. Exit code 1 when something that it needs is wrong.

    Takes every option of `herdsman agent run`. Without options, it checks the options of the installed agent.
    """
    looked, running = _looked(context.args, name, own_user)
    binaries = Binaries(_locate)
    checks = [
        *_engines(binaries),
        *_memory(looked, binaries),
        store_finding(looked.store, os.access),
        engine_user_finding(looked.engine_user, as_root=looked.as_root, system=platform.system()),
        *_address(looked),
        *_ports(looked, running=running),
        *_certificate(looked.certificate),
        *(_cluster(looked) if looked.is_kubernetes else []),
        *_macos(),
    ]
    report_checks(checks, output, fatal="failed")


def _looked(given: Sequence[str], name: str, own_user: bool) -> tuple[Looked, bool]:
    arguments, installed = list(given), None
    if not arguments:
        try:
            installed = read_installation(this_machine(), name, own_user=own_user)
        except MachineError as error:
            complain(str(error), hint=error.hint)
            raise typer.Exit(1) from None
        arguments = list(installed.arguments) if installed is not None else []
    if not any(each == "--host" or each.startswith("--host=") for each in arguments):
        arguments += ["--host", "doctor"]
    values: Mapping[str, Any] = run_command().make_context("herdsman agent doctor", arguments).params
    looked = Looked(
        host=values["host"],
        store=(values["store"] or Path.home() / STORE).expanduser().absolute(),
        kubeconfig=str(values["kubeconfig"]) if values["kubeconfig"] else None,
        is_kubernetes=str(values["plan_source"]) == "kubernetes",
        system_namespace=values["system_namespace"],
        namespaces=tuple(values["namespace"] or ()),
        http_address=values["http_address"],
        http_port=values["http_port"],
        certificate=values["tls_cert"],
        address=values["address"],
        memory_bytes=_bytes(values["memory_budget"]),
        memory_fraction=values["memory_fraction"],
        engine_user=values["engine_user"],
        as_root=installed.user == "root" if installed is not None else os.geteuid() == 0,
    )
    return looked, installed is not None


def _bytes(text: str | None) -> int | None:
    try:
        return bytes_of(text, field="--memory-budget")
    except SpecInvalid as error:
        raise typer.BadParameter(str(error)) from None


def _locate(name: str) -> Path | None:
    from tools.toolchain import ToolMissing, locate

    try:
        return locate(name)
    except ToolMissing:
        return None


def _engines(binaries: Binaries) -> Iterator[Check]:
    found = binaries.versions()
    if "llama-server" not in found:
        state = "warning" if found else "failed"
        yield Check("llama-server", state, "not found on PATH or in the usual places", LLAMA_SERVER_HINT)
    for engine, version in sorted(found.items()):
        path = binaries.find(engine) or ""
        if version or engine == "vllm":
            # vLLM would load Python for half a minute to print its version.
            yield Check(engine, "ok", ", ".join(filter(None, (version, path))))
        else:
            yield Check(
                engine,
                "warning",
                f"`{path} --version` prints no version",
                f"run `{path} --version` and repair the installation if it fails",
            )


def _memory(looked: Looked, binaries: Binaries) -> Iterator[Check]:
    machine = Machine(binaries.find)
    machine.measure()
    budget = host_budget(MemoryLimits(looked.memory_bytes, looked.memory_fraction), machine.capacity)
    state, hint = (
        ("ok", "") if budget.bytes >= GIB else ("warning", "set a larger budget with --memory-budget, or free memory")
    )
    yield Check("memory budget", state, str(budget), hint)
    found = ", ".join(f"{each.name or each.type} ({each.type})" for each in machine.accelerators)
    metal = any(each.type == "metal" for each in machine.accelerators)
    if platform.system() == "Darwin" and not metal:
        hint = "engines without Metal are slow: `brew install llama.cpp`, and do not run in a virtual machine"
        yield Check("accelerators", "warning", found or "none: llama-server reports no Metal", hint)
    else:
        yield Check("accelerators", "ok", found or "none: models run on the CPU")


def store_finding(store: Path, access: Callable[[Path, int], bool]) -> Check:
    """Check the store's directory, or the nearest existing one above it: whether it is writable and has free space."""
    place = next(each for each in (store, *store.parents) if each.exists())
    if not place.is_dir():
        return Check("store", "failed", f"{place} is not a directory", "choose another --store")
    if not access(place, os.W_OK | os.X_OK):
        hint = f"make the agent's user its owner: `chown -R USER {place}`, or choose another --store"
        return Check("store", "failed", f"this user may not write to {place}", hint)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check(
            "store",
            "failed",
            f"{place} cannot be written: {error.strerror}",
            "free space on the disk, or choose another --store",
        )
    where = f"{store}" + ("" if place == store else f" (the agent creates it in {place})")
    if free < LITTLE_SPACE_BYTES:
        return Check(
            "store",
            "warning",
            f"{where}, {size_text(free)} free",
            "models with some billions of parameters need more space",
        )
    return Check("store", "ok", f"{where}, {size_text(free)} free")


def engine_user_finding(name: str | None, *, as_root: bool, system: str) -> Check:
    """Check which user engines run as: it must not be root, and should not be the agent's user."""
    if not as_root:
        if name is None:
            return Check("engine user", "ok", "engines run as the agent's own user")
        hint = "install the agent with `--user root`, or omit --engine-user"
        return Check("engine user", "failed", f"only an agent that runs as root can run engines as user `{name}`", hint)
    wanted = name or USUAL
    try:
        engines = pwd.getpwnam(wanted)
    except KeyError:
        engines = None
    if engines is not None and engines.pw_uid != 0 and (name is not None or system == "Linux"):
        return Check("engine user", "ok", f"engines run as user `{wanted}`")
    if name is not None:
        why = "is root" if engines is not None else "does not exist"
        return Check("engine user", "failed", f"user `{name}` {why}", "name another user with --engine-user")
    hint = f"`useradd --system --create-home {USUAL}`, or name a user with --engine-user"
    if system != "Linux":
        hint = "name a user with --engine-user, or install the agent with --user"
    return Check("engine user", "warning", "the agent runs as root, and engines do too", hint)


def _address(looked: Looked) -> Iterator[Check]:
    try:
        address = looked.address or own_address()
    except NoAddress as error:
        state = "failed" if looked.is_kubernetes else "warning"
        yield Check(
            "address", state, str(error), "connect this machine to a network, or name its address with --address"
        )
        return
    if is_free(address, 0):
        yield Check("address", "ok", f"Services send requests to {address}")
    else:
        yield Check(
            "address",
            "failed",
            f"{address} is not an address of this machine",
            "name one of this machine's addresses with --address",
        )


def _ports(looked: Looked, *, running: bool) -> Iterator[Check]:
    # A sample: every fortieth port.
    sample = range(FIRST, FIRST + COUNT, 40)
    taken = [port for port in sample if not is_free("127.0.0.1", port)]
    of_all = f"{FIRST}-{FIRST + COUNT - 1}"
    if len(taken) > len(sample) // 2:
        yield Check("ports", "failed", f"most of {of_all} are in use", "stop the programs that use them")
    else:
        yield Check("ports", "ok", f"{of_all} are free" + (f" except for about {len(taken) * 40}" if taken else ""))
    if looked.http_port > 0 and not running:
        address = looked.http_address or "127.0.0.1"
        if not is_free(address, looked.http_port):
            detail = f"port {looked.http_port} of {address} is in use"
            yield Check("api port", "failed", detail, "choose another --http-port, or stop the program that uses it")


def _certificate(path: Path | None) -> Iterator[Check]:
    if path is None:
        return
    from cryptography import x509

    try:
        ends = x509.load_pem_x509_certificate(path.expanduser().read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        yield Check("certificate", "failed", f"{path}: {error}", "give a PEM file with --tls-cert")
        return
    yield certificate_finding(str(path), ends, datetime.now(UTC))


def certificate_finding(path: str, ends: datetime, now: datetime) -> Check:
    """Check the end date of a certificate."""
    days = (ends - now).days
    if days < 0:
        return Check("certificate", "failed", f"{path} expired {-days} days ago", "replace the certificate")
    if days < CERTIFICATE_WARNING_DAYS:
        return Check(
            "certificate",
            "warning",
            f"{path} expires in {days} days",
            "replace the certificate; the agent reads it without a restart",
        )
    return Check("certificate", "ok", f"{path} expires in {days} days")


def _cluster(looked: Looked) -> Iterator[Check]:
    if looked.kubeconfig:
        yield from token_finding(Path(looked.kubeconfig).expanduser().absolute(), time.time())
    try:
        client = KubeClient.default(looked.kubeconfig)
        sent = time.time()
        answer = client.exchange("GET", "/version", timeout_s=10.0, max_bytes=65536)
        received = time.time()
    except KubeError as error:
        hint = "check that this machine reaches the API server, or name another kubeconfig with --kubeconfig"
        yield Check("cluster", "failed", str(error), LAN_HINT if is_no_route(error) else hint)
        return
    yield Check("cluster", "ok", client.server)
    date = {key.lower(): value for key, value in answer.headers.items()}.get("date", "")
    if date:
        yield clock_finding(clock_offset_s(date, sent, received))
    denied = []
    for group, resource, verb, where in PERMISSIONS:
        places = (
            [looked.system_namespace] if where else (looked.namespaces if "hosts" not in resource else ()) or [None]
        )
        for place in places:
            try:
                name = lease_name(looked.host) if resource == "leases" else looked.host
                if not _allowed(client, group, resource, verb, place, name=name) and not (
                    verb == "create" and _exists(client, resource, place, name)
                ):
                    denied.append(f"{verb} {resource}" + (f" in {place}" if place else ""))
            except KubeError as error:
                yield Check(
                    "permissions", "failed", f"cannot be checked: {error}", "check that the kubeconfig is still valid"
                )
                return
    if denied:
        hint = "bind the roles herdsman-agent of docs/install/rbac.yaml to the identity of this kubeconfig"
        yield Check("permissions", "failed", f"may not {', '.join(denied)}", hint)
    else:
        yield Check("permissions", "ok", f"{len(PERMISSIONS)} checked")


def _exists(client: KubeClient, resource: str, namespace: str | None, name: str) -> bool:
    """Return whether an agent does not need the right to create its object: an invitation made it."""
    kind = {"hosts": kinds.HOSTS, "leases": kinds.LEASES}[resource]
    try:
        client.get(kind, namespace, name)
    except (Forbidden, NotFound):
        return False
    return True


def _allowed(
    client: KubeClient, group: str, resource: str, verb: str, namespace: str | None, *, name: str = ""
) -> bool:
    """Return whether the agent may do this. `name` counts for Hosts and Leases, whose rights may name the object."""
    plural, _, subresource = resource.partition("/")
    wanted = {
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "verb": verb,
        "namespace": namespace or "",
        "name": name if plural in ("hosts", "leases") and verb != "create" else "",
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool((answer.get("status") or {}).get("allowed"))


def is_no_route(error: BaseException) -> bool:
    """Return whether there was no route to the host (EHOSTUNREACH). macOS reports this when it blocks the local
    network.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno == errno.EHOSTUNREACH:
            return True
        seen = seen.__cause__ or seen.__context__
    return bool(re.search(r"[Nn]o route to host|Errno 65\b", str(error)))


def clock_offset_s(date: str, sent: float, received: float) -> float:
    """Return by how many seconds this machine's clock is ahead of an answer's Date, by its send and receive times.

    A Date is cut to whole seconds, so half a second is added. A Date between the two times counts as no offset.
    """
    theirs = parsedate_to_datetime(date).timestamp()
    if sent - 1.0 <= theirs <= received:
        return 0.0
    return (sent + received) / 2 - (theirs + 0.5)


def clock_finding(offset_s: float) -> Check:
    """Check the offset of the clock."""
    size = abs(offset_s)
    detail = f"{size:.0f} s {'ahead of' if offset_s > 0 else 'behind'} the API server's clock"
    hint = "synchronize the clock: `timedatectl set-ntp true`, or `sntp -sS time.apple.com` on a Mac"
    if size >= CLOCK_FAILED_S:
        return Check("clock", "failed", detail, hint)
    if size >= CLOCK_WARNING_S:
        return Check("clock", "warning", detail, hint)
    return Check("clock", "ok", "equal to the API server's clock")


def _macos() -> Iterator[Check]:
    if platform.system() != "Darwin":
        return
    yield from sleep_finding(_output_of("pmset", "-g"))
    yield from collector_finding(_sysctl("iogpu.disable_wired_collector"), platform.mac_ver()[0])
    places = [Path("/Library/LaunchAgents"), Path.home() / "Library/LaunchAgents"]
    yield from agent_trap([each for place in places if place.is_dir() for each in place.glob("*.plist")])


def sleep_finding(settings: str) -> Iterator[Check]:
    """Check the power settings in force, as `pmset -g` prints them: an idle Mac that sleeps counts as lost."""
    found = re.search(r"^\s*sleep\s+(\d+)", settings, re.MULTILINE)
    if found is None:
        return
    if found[1] == "0":
        yield Check("sleep", "ok", "this Mac does not sleep when idle")
    else:
        hint = "`sudo pmset -a sleep 0`, so that the agent can start a process at any time"
        detail = f"this Mac sleeps after {found[1]} min idle; the agent keeps it awake only while a process runs"
        yield Check("sleep", "warning", detail, hint)


def collector_finding(value: str | None, macos: str) -> Iterator[Check]:
    """Check macOS' collector of wired memory: from version 26 on it unwires models after a second of rest."""
    major = int(macos.partition(".")[0] or 0)
    if value is None or major < 26:
        return
    if value == "1":
        yield Check("wired memory", "ok", "macOS keeps models wired between requests")
    else:
        hint = "run `sudo sysctl iogpu.disable_wired_collector=1` now and after each boot"
        yield Check(
            "wired memory",
            "warning",
            "macOS unwires models after 1 s without requests; the next first token is slow",
            hint,
        )


def agent_trap(plists: Sequence[Path]) -> Iterator[Check]:
    """Find agents that were installed as LaunchAgents, which the local network cannot reach."""
    for path in plists:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if b"herdsman" in content and b"agent" in content:
            yield Check("launch agent", "failed", f"{path} starts an agent as a LaunchAgent", LAN_HINT)


def _sysctl(name: str) -> str | None:
    return _output_of("sysctl", "-n", name).strip() or None


def _output_of(*command: str) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def register(app: typer.Typer) -> None:
    """Register the command in `herdsman agent`."""
    app.command("doctor", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(doctor)
