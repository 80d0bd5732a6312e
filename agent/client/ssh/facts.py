"""The facts of a host, read by one command when a connection is opened.

`read_facts` has no I/O; called by `preparation`. The command is `scripts/facts.sh`, which prints lines `name value`. If
a tool is missing, only its line is missing.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Literal

from agent.client.ssh.connection import SshConnection
from agent.contract import Accelerator, HostFacts, ProcessPlan


class FactsIncomplete(ValueError):
    """The output lacks a required fact."""


@dataclass(frozen=True)
class SshFacts:
    """The facts of a host."""

    os: Literal["linux", "darwin"]
    arch: str
    user: str
    uid: int
    home: str
    init: Literal["systemd", "launchd", ""]
    cpus: int
    memory_bytes: int
    address: str
    """The host's own address on the connection, on which it can certainly listen."""
    tools: frozenset[str] = frozenset()
    binaries: dict[str, str] = field(default_factory=dict)
    """Path of each engine that was found."""
    versions: dict[str, str] = field(default_factory=dict)
    accelerators: tuple[Accelerator, ...] = ()

    def of_host(self, host: str, address: str, version: str) -> HostFacts:
        """Return the facts in the form of the contract. `address` is the one in Services, `version` the caller's."""
        return HostFacts(
            host=host,
            address=address,
            os=self.os,
            arch=self.arch,
            memory_bytes=self.memory_bytes,
            cpus=self.cpus,
            agent_version=version,
            runtimes=self.versions,
            accelerators=self.accelerators,
        )


def read_facts(text: str) -> SshFacts:
    """Parse the output of the script. Raises FactsIncomplete."""
    said: dict[str, str] = {}
    tools, binaries, versions, accelerators = set(), {}, {}, []
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        value = value.strip()
        if name == "tool":
            tools.add(value)
        elif name == "binary":
            binary, _, path = value.partition(" ")
            binaries[binary] = path
        elif name == "version":
            binary, _, words = value.partition(" ")
            versions[binary] = _version(words)
        elif name in ("metal", "cuda", "rocm"):
            accelerators.append(_accelerator(name, value, _int(said.get("memory", ""))))
        else:
            said.setdefault(name, value)
    missing = [name for name in ("os", "arch", "user", "uid", "home") if not said.get(name)]
    if missing:
        raise FactsIncomplete(f"the host did not print its {', '.join(missing)}")
    if said["os"] not in ("Linux", "Darwin"):
        raise FactsIncomplete(f"`{said['os']}` is neither Linux nor macOS")
    memory = _int(said.get("memory_kib", "")) * 1024 or _int(said.get("memory", ""))
    return SshFacts(
        os="darwin" if said["os"] == "Darwin" else "linux",
        arch=said["arch"].lower(),
        user=said["user"],
        uid=_int(said["uid"]),
        home=said["home"],
        init=said.get("init", ""),  # type: ignore[arg-type]
        cpus=_int(said.get("cpus", "")) or 1,
        memory_bytes=memory,
        address=_address(said.get("address", "")),
        tools=frozenset(tools),
        binaries=binaries,
        versions={name: versions.get(name, "") for name in binaries},
        accelerators=_together(accelerators),
    )


def _version(words: str) -> str:
    found = re.search(r"version:?\s*(?:is\s+)?v?(\S+)", words) or re.search(r"\b(\d+(?:\.\d+)+)\b", words)
    return found.group(1) if found else ""


def _accelerator(kind: str, value: str, host_memory: int) -> Accelerator:
    first, _, name = value.partition(" ")
    if kind == "metal":
        # 0 means the default of the system, which only Metal reports.
        wired = _int(first) << 20
        return Accelerator(type="metal", name=name.strip(), memory_bytes=min(wired, host_memory) or None)
    if kind == "cuda":
        return Accelerator(type="cuda", name=name.strip(), memory_bytes=(_int(first) << 20) or None)
    return Accelerator(type="rocm", memory_bytes=_int(first) or None)


def _together(found: list[Accelerator]) -> tuple[Accelerator, ...]:
    """Group devices of the same type and name."""
    grouped: dict[tuple[str, str], list[Accelerator]] = {}
    for each in found:
        grouped.setdefault((each.type, each.name), []).append(each)
    return tuple(
        each[0].model_copy(
            update={"count": len(each), "memory_bytes": sum(one.memory_bytes or 0 for one in each) or None}
        )
        for each in grouped.values()
    )


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


HELP_TIMEOUT_S = 30.0
_FIND = 'PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:$HOME/.local/bin:$HOME/bin"; command -v -- "$1" || exit 0'
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


class Binaries:
    """The programs of one host, cached for one connection."""

    def __init__(self, connection: SshConnection, facts: SshFacts) -> None:
        self._connection = connection
        self._found = dict(facts.binaries)
        self._flags: dict[str, frozenset[str]] = {}

    def find(self, name: str) -> str:
        """Return the path of a program, or an empty string if it is not on the host.

        An absolute path is returned unchanged.
        """
        if name.startswith("/") or not name:
            return name
        if not self._found.get(name):
            told = self._connection.shell(_FIND, what=f"looking for {name}", arguments=[name]).strip()
            # Keywords and functions of the shell have no path.
            self._found[name] = told if told.startswith("/") else ""
        return self._found[name]

    def flags(self, plan: ProcessPlan, binary: str) -> frozenset[str]:
        """Return the long flags in the help of a llama-server. Empty for other engines."""
        if plan.runtime != "llamacpp":
            return frozenset()
        if binary not in self._flags:
            said = self._connection.run([binary, "--help"], what=f"`{binary} --help`", timeout_s=HELP_TIMEOUT_S)
            self._flags[binary] = frozenset(_FLAG.findall((said.stdout + said.stderr).decode("utf-8", "replace")))
        return self._flags[binary]
