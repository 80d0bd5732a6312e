"""Derives from a service's plan that of the daemon which its model needs: who shares one, how it is started. Pure.

Services share a daemon when they ask for the same settings of it; one that asks for others gets another daemon.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.contract import ProcessPlan

PREFIX = "_daemons/"
"""Keys of daemons: no namespace begins so."""
OLLAMA_PORT = 11434
OLLAMA_HOST = "OLLAMA_HOST"
MODELS_KNOWN = "HERDSMAN_MODELS"
"""Variable of a daemon that had to be started again to see models that came later: it makes its plan another one."""
_OMLX_MODELS = "omlx"
"""Directory of the store with a link to each model's directory."""
_OMLX_PLAIN = ("omlx", "serve", "--model-dir", "{models}", "--port", "{port}", "--host", "{host}")


@dataclass(frozen=True)
class DaemonPlan:
    """How a daemon is found and, where it is not there, started."""

    key: str
    plan: ProcessPlan
    port: int | None
    """Where it listens, or would first try to; None: wherever a port is free."""
    may_be_foreign: bool
    """One that runs already, started by somebody else, serves as well."""
    models: Path | None = None
    """The directory in which it looks for models."""


def is_daemon_key(key: str) -> bool:
    """Tell the key of a shared daemon from that of a service's process."""
    return key.startswith(PREFIX)


def daemon_of(plan: ProcessPlan, *, store: Path, address: str, environment: Mapping[str, str]) -> DaemonPlan:
    """Plan the daemon of a model, which listens on `address` and nowhere else.

    `environment` is the agent's own: OLLAMA_HOST there says at which port Ollama is.
    """
    return _ollama(plan, address, environment) if plan.runtime == "ollama" else _omlx(plan, store, address)


def port_in(ollama_host: str) -> int:
    """Read the port of OLLAMA_HOST, which may be a URL, an address, a port, or both (`:11435`)."""
    place = ollama_host.strip().rpartition("://")[2].partition("/")[0]
    digits = place.rpartition(":")[2] if ":" in place and not place.endswith("]") else ""
    return int(digits) if digits.isdigit() and 0 < int(digits) < 65536 else OLLAMA_PORT


def _ollama(plan: ProcessPlan, address: str, environment: Mapping[str, str]) -> DaemonPlan:
    own = {name: value for name, value in plan.env.items() if name != OLLAMA_HOST}
    named = plan.env.get(OLLAMA_HOST) or ("" if own else environment.get(OLLAMA_HOST, ""))
    port = port_in(named) if named or not own else None
    shown = f"[{address}]" if ":" in address else address
    settings = {**own, **({OLLAMA_HOST: str(port)} if port != OLLAMA_PORT else {})}
    daemon = _plan(plan, argv=("ollama", "serve"), env={**own, OLLAMA_HOST: f"{shown}:{{port}}"}, health="/api/version")
    return DaemonPlan(_key("ollama", settings), daemon, port, may_be_foreign=port is not None and not own)


def _omlx(plan: ProcessPlan, store: Path, address: str) -> DaemonPlan:
    models = store / _OMLX_MODELS
    settings = {"argv": plan.argv[1:], "env": plan.env}
    plain = not plan.env and plan.argv == _OMLX_PLAIN
    argv = tuple(each.replace("{models}", str(models)).replace("{host}", address) for each in plan.argv)
    daemon = _plan(plan, argv=argv, env=plan.env, health="/v1/models/status")
    return DaemonPlan(_key("omlx", {} if plain else settings), daemon, None, may_be_foreign=False, models=models)


def _plan(plan: ProcessPlan, *, argv: tuple[str, ...], env: dict[str, str], health: str) -> ProcessPlan:
    return ProcessPlan(
        host=plan.host,
        service=plan.runtime,
        runtime=plan.runtime,
        argv=argv,
        env=env,
        health_path=health,
        service_name=plan.runtime,
        startup_timeout_s=120.0,
        stop_grace_s=plan.stop_grace_s,
        drain_timeout_s=0.0,
        memory_check="off",
    )


def _key(runtime: str, settings: Mapping[str, object]) -> str:
    if not settings:
        return f"{PREFIX}{runtime}"
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return f"{PREFIX}{runtime}-{digest}"
