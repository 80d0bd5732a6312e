"""Derives the plan of a daemon from the plan of a service whose model needs it. Without I/O.

Services with the same settings for the daemon share one. Other settings lead to a separate daemon.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.contract import ProcessPlan

PREFIX = "_daemons/"
"""Prefix of the keys of daemons, which no namespace can have."""
OLLAMA_PORT = 11434
OLLAMA_HOST = "OLLAMA_HOST"
MODELS_KNOWN = "HERDSMAN_MODELS"
"""Variable with the models for which a daemon was restarted. A new model changes it, and so the daemon's plan."""
_OMLX_MODELS = "omlx"
"""Directory of the store with a link to each model's directory."""
_OMLX_PLAIN = ("omlx", "serve", "--model-dir", "{models}", "--port", "{port}", "--host", "{host}")


@dataclass(frozen=True)
class DaemonPlan:
    """How to find a daemon, and how to start it if there is none."""

    key: str
    plan: ProcessPlan
    port: int | None
    """The port of the daemon, or the first to try. None: any free port."""
    may_be_foreign: bool
    """A running daemon that the agent did not start can be used, too."""
    models: Path | None = None
    """The daemon's model directory."""


def is_daemon_key(key: str) -> bool:
    """Return whether a key belongs to a shared daemon, instead of a service's process."""
    return key.startswith(PREFIX)


def daemon_of(plan: ProcessPlan, *, store: Path, address: str, environment: Mapping[str, str]) -> DaemonPlan:
    """Return the plan of a model's daemon, which listens only on `address`.

    `environment` is the agent's environment, whose OLLAMA_HOST contains the port of Ollama.
    """
    return _ollama(plan, address, environment) if plan.runtime == "ollama" else _omlx(plan, store, address)


def port_in(ollama_host: str) -> int:
    """Return the port in OLLAMA_HOST, which may be a URL, an address, a port, or both (`:11435`)."""
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
