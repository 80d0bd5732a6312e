"""The group `herdsman agent`: `agent_run`, `agent_service` (install and the like), `agent_doctor`, `agent_store`."""

from __future__ import annotations

import typer

from automation.cli import agent_doctor, agent_service, agent_store
from automation.cli.agent_run import run
from automation.cli.host_join import JOIN_CONTEXT, join

app = typer.Typer(no_args_is_help=True)
app.add_typer(agent_store.app, name="store", help="List and remove the models on this host's disk.")
agent_service.register(app)
agent_doctor.register(app)
app.command("run")(run)
# The package `herdsman-agent` has no group `host`; its `host join` calls this.
app.command("join", hidden=True, context_settings=JOIN_CONTEXT)(join)


@app.callback()
def agent() -> None:
    """Run processes on a host: downloads, llama-server, health, endpoints."""
