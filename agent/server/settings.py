"""The settings of one agent.

Made by `automation.cli.agent_run` from the options of `herdsman agent run`; read by `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent.processes.secret_values import FOLDER
from agent.server.api.api_listeners import ApiSettings
from agent.server.cluster.host_lease import RENEW_S
from agent.server.memory.host_memory import MemorySettings
from agent.server.processes.engine_user import EngineUser
from agent.server.processes.ports import FIRST
from agent.sources.source_policy import SourcePolicy
from program.runtimes.host_rules import Allowance


@dataclass(frozen=True)
class AgentSettings:
    """How one agent runs."""

    host: str
    store: Path
    address: str
    """Where the cluster finds the processes: what their EndpointSlices name."""
    listen: str = ""
    """Where processes listen; empty means `address`."""
    plan_source: Literal["kubernetes", "http"] = "kubernetes"
    namespaces: tuple[str, ...] = ()
    """Namespaces whose HostProcesses count; empty means all."""
    system_namespace: str = "herdsman-system"
    api: ApiSettings = field(default_factory=ApiSettings)
    keep_processes: bool = False
    """Leave the processes running when the agent stops; the next agent adopts them."""
    source_policy: SourcePolicy = field(default_factory=SourcePolicy)
    locate: Callable[[str], Path | None] | None = None
    """Where an engine's binary is; asked before PATH."""
    first_port: int = FIRST
    labels: Mapping[str, str] = field(default_factory=dict)
    """Given to the Host object that the agent makes where there is none."""
    heartbeat_s: float = RENEW_S
    """How often the host's Lease is renewed; it lasts 2.4 times as long."""
    store_size_bytes: int | None = None
    """Most that downloaded models may take on disk; None: what the disk has."""
    credentials: Path | None = None
    """Directory or file of what proves to sources that this host may read them; None: the agent's environment."""
    secrets: Path = FOLDER
    """Directory with the values of services' secret variables, `<namespace>/<secret>/<key>`."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    engine_user: EngineUser | None = None
    """Who processes run as; None: the agent's own user."""
    allowance: Allowance | None = None
    """What the machine's owner allows plans to ask for; None: what the Host object says, without a cluster all."""
