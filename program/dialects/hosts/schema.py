"""Host of herdsman.dev/v1alpha1: a machine that runs model servers as processes.

Hosts are cluster-scoped like Nodes. A person or the host's agent creates the object. The agent writes its status; for a
host over SSH, the loop writes it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required, rule
from program.dialects.llmkube.schema.status import Condition
from program.dialects.pods.schema import QUANTITY, LabelSelector


class Taint(CrdModel):
    """Keeps services away that do not tolerate it, as a Node's taint does with pods."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = required(
        "Effect on services that do not tolerate the taint."
    )
    key: str = required("Key of the taint.", min_length=1)
    value: str | None = optional("Value of the taint.")


class SecretName(CrdModel):
    """A Secret in Herdsman's namespace."""

    name: str = required("Name of the Secret.", min_length=1)


class Bastion(CrdModel):
    """A machine that SSH connections go through."""

    address: str = required("Name or IP address of the bastion.", min_length=1)
    known_hosts: list[str] = required(
        "Public host keys of the bastion, as lines of known_hosts or `type base64`.", min_length=1
    )
    port: int = optional("SSH port of the bastion.", 22, ge=1, le=65535)
    user: str | None = optional("User on the bastion; the host's user by default.")


class SshSpec(CrdModel):
    """The SSH connection to a host without an agent. An unlisted host key is refused and never added."""

    allow_root: bool = optional(
        "Let processes run as root if `user` is root; by default Herdsman refuses to start them.", False
    )
    bastion: Bastion | None = optional("Machine that SSH connections go through.")
    identity_file: str | None = optional("Path of the private key on the machine where Herdsman runs.")
    identity_secret: SecretName | None = optional("Secret whose key `ssh-privatekey` is the private key.")
    known_hosts: list[str] = required("The host's public keys, as lines of known_hosts or `type base64`.", min_length=1)
    port: int = optional("SSH port.", 22, ge=1, le=65535)
    secrets: str | None = optional(
        "Directory on the host with a file NAMESPACE/SECRET/KEY for each value that services name by secretKeyRef; "
        "/etc/herdsman/secrets by default."
    )
    store: str | None = optional("Directory on the host for models, logs and state.")
    sudo: bool = optional("Create system units with sudo; otherwise Herdsman creates units of the user.", False)
    user: str = required("User on the host.", min_length=1)


class AllowSpec(CrdModel):
    """Permissions of services in addition to Herdsman's engines with their harmless arguments."""

    commands: list[str] = optional(
        "Programs that runtime generic may start, written as in the service's command; `*` allows all.", []
    )
    flags: list[str] = optional(
        "More arguments of engines, such as `--slot-save-path`; a `*` at the end matches any rest.", []
    )
    namespace_selector: LabelSelector | None = optional(
        "Labels of namespaces whose services may run on this host, in addition to those in `namespaces`."
    )
    namespaces: list[str] = optional(
        "Namespaces whose services may run on this host; an empty list without namespaceSelector allows all.", []
    )
    paths: list[str] = optional(
        "Directories of the host; arguments and sources of models may name the files below them.", []
    )
    registries: list[str] = optional("Host names of more registries that Ollama may pull from.", [])
    runtimes: list[str] = optional("More runtimes: `generic`, which starts the service's command.", [])
    variables: list[str] = optional("More environment variables; a `*` at the end matches any rest of the name.", [])


class PressureSpec(CrdModel):
    """The limits of memory pressure, as shares of all memory that are available, and the action."""

    critical: float = optional("Share of available memory below which pressure is critical.", 0.10, gt=0, lt=1)
    eviction: bool = optional("Stop services while pressure is critical, the least important first.", False)
    warning: float = optional("Share of available memory below which pressure is a warning.", 0.20, gt=0, lt=1)


class HostSpec(CrdModel):
    """The wanted settings of a host."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "(self.transport == 'ssh') == has(self.ssh)",
                    "ssh is required with transport ssh, and not allowed without it",
                    field=".ssh",
                ),
                rule(
                    "self.transport != 'ssh' || has(self.address)",
                    "address is required with transport ssh",
                    field=".address",
                ),
            ]
        }
    )
    address: str | None = optional(
        "IP address that Services send requests to; SSH also connects to it. The default is the address that the "
        "agent reports."
    )
    allow: AllowSpec | None = optional(
        "More permissions for services on this host; docs/explanation/security.md lists the default ones."
    )
    drain: bool = optional("Move all services that may move to other hosts, and place no new service.", False)
    memory_budget: str | None = optional(
        "Memory for all processes together, a quantity; wins over memoryFraction.", pattern=QUANTITY
    )
    memory_fraction: float | None = optional(
        "Memory for all processes together, as a share of the host's memory.", gt=0, le=1
    )
    memory_pressure: PressureSpec = optional("Limits of memory pressure, and the action below them.", PressureSpec())
    runtimes: list[str] = optional(
        "Runtimes that may run on this host; an empty list allows all that Herdsman finds.", []
    )
    ssh: SshSpec | None = optional("SSH connection, for transport ssh.")
    store_size: str | None = optional("Maximum size of downloaded models on disk, a quantity.", pattern=QUANTITY)
    taints: list[Taint] = optional("Taints that keep services away unless they tolerate them.", [])
    transport: Literal["agent", "ssh"] = optional(
        "How Herdsman runs processes: by an agent on the host, or over SSH.", "agent"
    )
    unschedulable: bool = optional("Place no new service.", False)


class HostResources(CrdModel):
    cpu: int | None = optional("Number of processors.")
    memory: Int64 | None = optional("Memory in bytes.")


class HostAccelerator(CrdModel):
    count: int | None = optional("Number of accelerators of this kind.")
    memory: Int64 | None = optional("Memory for models on all of them together, in bytes.")
    name: str | None = optional("The vendor's name of the accelerator.")
    type: str | None = optional("metal, cuda, rocm, vulkan or intel.")


class HostedProcessStatus(CrdModel):
    """One process on the host, in short."""

    cpu_percent: float | None = optional("CPU use in percent of one core.")
    memory: Int64 | None = optional("Resident memory in bytes.")
    name: str | None = optional("The process's HostProcess, as `namespace/name`.")
    phase: str | None = optional("Phase of the process.")
    reserved: Int64 | None = optional("Memory that is reserved for the process, in bytes.")
    slots: int | None = optional("Requests that the process can work on at once.")
    slots_busy: int | None = optional("Requests that the process works on now.")
    tokens_per_second: float | None = optional("Generated tokens per second.")


class HostStatus(CrdModel):
    """The observed state of a host."""

    accelerators: list[HostAccelerator] = optional("Accelerators of the host.", [])
    address: str | None = optional("IP address that Services send requests to.")
    agent_version: str | None = optional("Version of the host's agent.")
    allocatable: HostResources | None = optional("Resources for all processes together.")
    arch: str | None = optional("arm64, x86_64, …")
    capacity: HostResources | None = optional("Resources of the machine.")
    conditions: list[Condition] = optional(
        "Ready, MemoryPressure, Schedulable.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    endpoint: str | None = optional("URL of the API of the host's agent.")
    last_heartbeat: Time | None = optional(
        "Time of the last write of this status. The host's Lease shows whether the host is alive."
    )
    memory_pressure: str | None = optional("Normal, Warning or Critical.")
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    os: str | None = optional("darwin or linux.")
    processes: list[HostedProcessStatus] = optional("Processes that run on the host.", [])
    runtimes: dict[str, str] = optional("Version of each runtime that was found on the host.", {})
    tls_fingerprint: str | None = optional("SHA-256 of the certificate of the agent's API, in hex.")
