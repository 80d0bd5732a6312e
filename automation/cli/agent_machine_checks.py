"""Checks of a machine for an agent: engines, memory, store, users, address, certificate. Called by `agent_doctor`."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from agent.server.host_facts import Binaries, NoAddress, own_address
from agent.server.memory.budget import MemoryLimits, host_budget
from agent.server.memory.machine import Machine
from agent.server.processes.engine_user import USUAL
from agent.server.processes.ports import COUNT, FIRST, is_free
from automation.cli.agent_checked_options import CheckedOptions
from automation.cli.output import size_text
from automation.console.check import Check

GIB = 1024**3
LITTLE_SPACE_BYTES = 20 * GIB
CERTIFICATE_WARNING_DAYS = 30
LLAMA_SERVER_HINT = "`brew install llama.cpp`, or `herdsman tools install llama-server`"


def machine_checks(options: CheckedOptions, *, running: bool) -> Iterator[Check]:
    """Check this machine. `running`: the agent may be running, and use its port."""
    binaries = Binaries(_locate)
    yield from _engines(binaries)
    yield from _memory(options, binaries)
    yield store_finding(options.store, os.access)
    yield engine_user_finding(options.engine_user, as_root=options.as_root, system=platform.system())
    yield from _address(options)
    yield from _ports(options, running=running)
    yield from _certificate(options.certificate)


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


def _memory(options: CheckedOptions, binaries: Binaries) -> Iterator[Check]:
    machine = Machine(binaries.find)
    machine.measure()
    budget = host_budget(MemoryLimits(options.memory_bytes, options.memory_fraction), machine.capacity)
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


def _address(options: CheckedOptions) -> Iterator[Check]:
    try:
        address = options.address or own_address()
    except NoAddress as error:
        state = "failed" if options.is_kubernetes else "warning"
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


def _ports(options: CheckedOptions, *, running: bool) -> Iterator[Check]:
    # A sample: every fortieth port.
    sample = range(FIRST, FIRST + COUNT, 40)
    taken = [port for port in sample if not is_free("127.0.0.1", port)]
    of_all = f"{FIRST}-{FIRST + COUNT - 1}"
    if len(taken) > len(sample) // 2:
        yield Check("ports", "failed", f"most of {of_all} are in use", "stop the programs that use them")
    else:
        yield Check("ports", "ok", f"{of_all} are free" + (f" except for about {len(taken) * 40}" if taken else ""))
    if options.http_port > 0 and not running:
        address = options.http_address or "127.0.0.1"
        if not is_free(address, options.http_port):
            detail = f"port {options.http_port} of {address} is in use"
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
