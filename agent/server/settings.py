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
from agent.server.joining.identity import Identity
from agent.server.memory.host_memory import MemorySettings
from agent.server.processes.engine_user import EngineUser
from agent.server.processes.ports import FIRST
from agent.sources.source_policy import SourcePolicy
from program.runtimes.host_rules import Allowance


@dataclass(frozen=True)
class AgentSettings:
    """The settings of one agent."""

    host: str
    store: Path
    address: str
    """The address of the processes in their EndpointSlices."""
    listen: str = ""
    """The address on which processes listen. Empty means `address`."""
    plan_source: Literal["kubernetes", "http"] = "kubernetes"
    namespaces: tuple[str, ...] = ()
    """Namespaces whose HostProcesses run here. Empty means all."""
    system_namespace: str = "herdsman-system"
    api: ApiSettings = field(default_factory=ApiSettings)
    keep_processes: bool = False
    """Leave the processes running when the agent stops; the next agent adopts them."""
    source_policy: SourcePolicy = field(default_factory=SourcePolicy)
    locate: Callable[[str], Path | None] | None = None
    """Returns the path of an engine's binary. Used before PATH is searched."""
    first_port: int = FIRST
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Host object that the agent creates if there is none."""
    heartbeat_s: float = RENEW_S
    """How often the host's Lease is renewed. Its duration is 2.4 times as long."""
    store_size_bytes: int | None = None
    """Most disk space for downloaded models. None: limited only by the disk."""
    credentials: Path | None = None
    """Directory or file with the credentials for sources. None: the agent's environment."""
    secrets: Path = FOLDER
    """Directory with the values of services' secret variables, `<namespace>/<secret>/<key>`."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    engine_user: EngineUser | None = None
    """The user that processes run as. None: the agent's own user."""
    allowance: Allowance | None = None
    """Requests of plans that the machine's owner allows. None: the Host object decides; without a cluster all are
    allowed."""
    identity: Identity | None = None
    """The identity that `herdsman host join` wrote, whose token the agent renews. None: another one, which it does
    not."""
