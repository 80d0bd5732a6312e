"""The context of replicas on hosts whose service sets none: what a process has stays, a new one gets what fits.

Called by `registry` for the loop and for previews. `program.host_context` chooses. ADR 85 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.contract import ProcessReason
from components.host_plan import host_files
from kubeapi.json_types import Json
from program import sizing
from program.desired.errors import SpecInvalid
from program.desired.service import DesiredService, HostContext
from program.host_context import PENDING, HostRoom, default_context, takes_default, with_context
from program.runtimes.llamacpp import HOST_CONTEXT_SIZE

RoomOf = Callable[[int, str], HostRoom | None]
"""Returns the memory for a replica on a host; None while it is not known."""


def with_contexts(desired: DesiredService, processes: Mapping[int, Json], room: RoomOf) -> DesiredService:
    """Return the service with the context of each placed replica. Other engines and set contexts stay as they are.

    `processes` are the HostProcesses of the service by replica, in the form of `trim_hosts.host_process`.
    """
    hosting = desired.host_placement
    if hosting is None or not takes_default(desired):
        return desired
    chosen = tuple(
        None if host is None else _context(desired, host, replica, processes.get(replica), room)
        for replica, host in enumerate(hosting.hosts)
    )
    return desired.model_copy(update={"host_placement": hosting.model_copy(update={"contexts": chosen})})


def lacks_context(desired: DesiredService, processes: Mapping[int, Json]) -> bool:
    """Return whether a replica that does not serve yet has no chosen context, because a fact is not known."""
    hosting = desired.host_placement
    return hosting is not None and any(
        context == PENDING and not ((processes.get(replica) or {}).get("status") or {}).get("ready")
        for replica, context in enumerate(hosting.contexts)
    )


def memory_at_context(desired: DesiredService, replica: int) -> int | None:
    """Return the estimated memory in bytes of a replica at its chosen context; None if it is not known."""
    context = desired.host_placement.context_of(replica) if desired.host_placement is not None else None
    if context is None or context.chosen != "default":
        return None
    found = sizing.estimate(with_context(desired, context.tokens))
    return found.total_bytes if found is not None else None


def context_notes(desired: DesiredService, processes: Mapping[int, Json]) -> list[str]:
    """Describe each context that a replica would get and does not have now, for previews."""
    hosting = desired.host_placement
    notes = []
    for replica, context in enumerate(hosting.contexts if hosting is not None else ()):
        live = processes.get(replica)
        has = live["spec"]["context"] if live is not None else None
        if context is None or context.tokens == has or hosting is None:
            continue
        why = "the longest that fits into its memory" if context.chosen == "default" else "as long as no more is known"
        on = f"{context.tokens:,} tokens of context on host `{hosting.hosts[replica]}`"
        notes.append(f"replica {replica} gets {on}, {why}; spec.contextSize sets another")
    return notes


def _context(desired: DesiredService, host: str, replica: int, live: Json | None, room: RoomOf) -> HostContext:
    kept = _kept(desired, host, live)
    if kept is None:
        return default_context(desired, room(replica, host))
    if kept.chosen == "default" and waits_for_memory(live):
        # It was chosen while less was reserved on the host. A process that does not run can have a shorter one.
        found = default_context(desired, room(replica, host))
        return found if found.chosen == "default" and found.tokens < kept.tokens else kept
    return kept


def _kept(desired: DesiredService, host: str, live: Json | None) -> HostContext | None:
    """Return the context that a live process keeps; None if it gets a new one.

    It gets a new one on another host, for another model, or after a context that the service had set.
    """
    if live is None or live["spec"]["host"] != host or live["spec"]["context"] is None:
        return None
    if live["spec"]["sources"] != _model_sources(desired):
        return None
    tokens, chosen = int(live["spec"]["context"]), str(live["spec"]["chosen"])
    if chosen == PENDING.chosen:
        return PENDING if live["status"].get("ready") else None
    if chosen == str(tokens):
        return HostContext(tokens=tokens, chosen="default")
    # Versions without this choice made processes with this context, and no annotation.
    return HostContext(tokens=tokens) if tokens == HOST_CONTEXT_SIZE and not chosen else None


def _model_sources(desired: DesiredService) -> tuple[str, ...]:
    """Return the addresses of the model's files, as `trim_hosts.model_sources_of_plan` finds them in a live process."""
    try:
        found = host_files(desired.model_copy(update={"adapters": ()}))
    except SpecInvalid:
        return ()
    return tuple(sorted(each.source for each in (found["file"], *(found["files"] or {}).values()) if each is not None))


def waits_for_memory(live: Json | None) -> bool:
    """Return whether a process, in the form of `trim_hosts.host_process`, was refused because memory is lacking."""
    status = (live or {}).get("status") or {}
    return status.get("reason") == ProcessReason.INSUFFICIENT_MEMORY and not status.get("ready")
