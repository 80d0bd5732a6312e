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
        "What it does to who does not tolerate it."
    )
    key: str = required("Its name.", min_length=1)
    value: str | None = optional("Its value.")


class SecretName(CrdModel):
    """A Secret in Herdsman's namespace."""

    name: str = required("Name of the Secret.", min_length=1)


class Bastion(CrdModel):
    """A machine that SSH connections go through."""

    address: str = required("Name or IP address.", min_length=1)
    known_hosts: list[str] = required("Its public host keys, as lines of known_hosts or `type base64`.", min_length=1)
    port: int = optional("Its SSH port.", 22, ge=1, le=65535)
    user: str | None = optional("User there; the host's by default.")


class SshSpec(CrdModel):
    """The SSH connection to a host without an agent. An unlisted host key is refused and never added."""

    allow_root: bool = optional("Let processes run as root, where `user` is root; by default they are refused.", False)
    bastion: Bastion | None = optional("Where connections go through.")
    identity_file: str | None = optional("Private key, as a path where Herdsman runs.")
    identity_secret: SecretName | None = optional("Secret whose key `ssh-privatekey` is the private key.")
    known_hosts: list[str] = required("The host's public keys, as lines of known_hosts or `type base64`.", min_length=1)
    port: int = optional("SSH port.", 22, ge=1, le=65535)
    secrets: str | None = optional(
        "Directory on the host with NAMESPACE/SECRET/KEY, the values that services take by secretKeyRef; "
        "/etc/herdsman/secrets by default."
    )
    store: str | None = optional("Directory on the host for models, logs and state.")
    sudo: bool = optional("Use sudo where root is needed; else units are the user's own.", False)
    user: str = required("User on the host.", min_length=1)


class AllowSpec(CrdModel):
    """Permissions of services in addition to Herdsman's engines with their harmless arguments."""

    commands: list[str] = optional(
        "Programs that runtime generic may start, as they stand in the service's command; `*` for all.", []
    )
    flags: list[str] = optional(
        "Further arguments of engines, such as `--slot-save-path`; a `*` at the end stands for the rest.", []
    )
    namespace_selector: LabelSelector | None = optional(
        "Namespaces whose services may run here, by their labels, beside those of `namespaces`."
    )
    namespaces: list[str] = optional(
        "Namespaces whose services may run here; without namespaceSelector empty means all.", []
    )
    paths: list[str] = optional("Directories of the host: arguments and sources of models may name what is below.", [])
    registries: list[str] = optional("Hosts of further registries that Ollama may pull from.", [])
    runtimes: list[str] = optional("Further runtimes: `generic`, which starts a command of the service's own.", [])
    variables: list[str] = optional(
        "Further environment variables; a `*` at the end stands for the rest of the name.", []
    )


class PressureSpec(CrdModel):
    """The limits of memory pressure, as shares of all memory that are available, and the action."""

    critical: float = optional("Below this share pressure is critical.", 0.10, gt=0, lt=1)
    eviction: bool = optional("Stop services while pressure is critical, the least important first.", False)
    warning: float = optional("Below this share pressure is a warning.", 0.20, gt=0, lt=1)


class HostSpec(CrdModel):
    """What people say of a host."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("(self.transport == 'ssh') == has(self.ssh)", "set ssh exactly with transport ssh", field=".ssh"),
                rule("self.transport != 'ssh' || has(self.address)", "an SSH host needs an address", field=".address"),
            ]
        }
    )
    address: str | None = optional(
        "IP address that Services lead to; for ssh also where to connect. Without it the agent's own counts."
    )
    allow: AllowSpec | None = optional(
        "What services may ask of this host. docs/explanation/security.md lists the defaults."
    )
    drain: bool = optional("Move every service away that may move, and place none.", False)
    memory_budget: str | None = optional(
        "Memory for all processes together, a quantity; wins over memoryFraction.", pattern=QUANTITY
    )
    memory_fraction: float | None = optional("The same as a share of the host's memory.", gt=0, le=1)
    memory_pressure: PressureSpec = optional("When memory is short, and what is done then.", PressureSpec())
    runtimes: list[str] = optional("Runtimes that may be placed here; empty: all that are found.", [])
    ssh: SshSpec | None = optional("How to reach it, for transport ssh.")
    store_size: str | None = optional("Most that downloaded models may take on disk, a quantity.", pattern=QUANTITY)
    taints: list[Taint] = optional("What keeps services away.", [])
    transport: Literal["agent", "ssh"] = optional(
        "Who runs the processes: an agent on the host, or Herdsman over SSH.", "agent"
    )
    unschedulable: bool = optional("Place no new service.", False)


class HostResources(CrdModel):
    cpu: int | None = optional("Processors.")
    memory: Int64 | None = optional("Bytes.")


class HostAccelerator(CrdModel):
    count: int | None = optional("How many there are.")
    memory: Int64 | None = optional("Bytes that models may take there, of all together.")
    name: str | None = optional("What the vendor calls it.")
    type: str | None = optional("metal, cuda, rocm, vulkan or intel.")


class HostedProcessStatus(CrdModel):
    """One process on the host, in short."""

    cpu_percent: float | None = optional("Of one core.")
    memory: Int64 | None = optional("Resident bytes.")
    name: str | None = optional("Its HostProcess, as `namespace/name`.")
    phase: str | None = optional("Its phase.")
    reserved: Int64 | None = optional("Bytes that it was admitted with.")
    slots: int | None = optional("Requests that it can work on at once.")
    slots_busy: int | None = optional("Requests that it works on.")
    tokens_per_second: float | None = optional("Tokens generated.")


class HostStatus(CrdModel):
    """What the host says of itself."""

    accelerators: list[HostAccelerator] = optional("What computes beside the processors.", [])
    address: str | None = optional("Where Services lead to.")
    agent_version: str | None = optional("Version of its agent.")
    allocatable: HostResources | None = optional("What processes may take together.")
    arch: str | None = optional("arm64, x86_64, …")
    capacity: HostResources | None = optional("What the machine has.")
    conditions: list[Condition] = optional(
        "Ready, MemoryPressure, Schedulable.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    endpoint: str | None = optional("URL of its agent's API.")
    last_heartbeat: Time | None = optional("When its status was written last; that it lives is said by its Lease.")
    memory_pressure: str | None = optional("Normal, Warning or Critical.")
    observed_generation: Int64 | None = optional("Generation of the spec that this status knows.")
    os: str | None = optional("darwin or linux.")
    processes: list[HostedProcessStatus] = optional("What it runs.", [])
    runtimes: dict[str, str] = optional("Version of each runtime found.", {})
    tls_fingerprint: str | None = optional("SHA-256 of the certificate of its API, hex.")
