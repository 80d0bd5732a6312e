"""`herdsman leaders`: which loop leads which shard of the namespaces, and since when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from automation.cli.output import OutputFormat, complain, duration_text, print_json, print_table
from automation.cli.place_options import Context
from automation.leadership.election import LABEL_LOOP, LEASE_NAME
from automation.leadership.shards import shard_of_lease
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError

COLUMNS = ("PART", "LEASE", "LEADER", "SINCE", "HEARD", "TURNS")


@dataclass(frozen=True)
class Leader:
    """One shard and its leader."""

    part: str
    """Its number and the count; `0/1` without a division."""
    lease: str
    holder: str
    """Host and pid; empty without a leader."""
    since: str
    heard: str
    """The time of the last renewal, by the holder's clock."""
    turns: int
    """How often the Lease got another holder."""


def leaders(
    lease_name: Annotated[str, typer.Option(help="The base name of the leases.")] = LEASE_NAME,
    lease_namespace: Annotated[str, typer.Option(help="Namespace of the leases.")] = SYSTEM_NAMESPACE,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """List which loop leads which shard of the namespaces. Exit code 1 when a shard, or all, has no leader."""
    try:
        selector = f"{LABEL_LOOP}={lease_name}"
        found = KubeClient.default(kubeconfig, context=context).list(
            kinds.LEASES, lease_namespace, label_selector=selector
        )["items"]
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    rows = leaders_of(found, lease_name)
    if output is OutputFormat.JSON:
        print_json([asdict(row) for row in rows])
    elif rows:
        now = datetime.now(UTC)
        print_table(COLUMNS, [_cells(row, now) for row in rows])
    else:
        complain(f"no loop has led in namespace `{lease_namespace}` yet", hint="start a loop with `herdsman run`")
    if not rows or not all(row.holder for row in rows):
        raise typer.Exit(1)


def leaders_of(leases: list[dict[str, Any]], base: str) -> tuple[Leader, ...]:
    """Return the leaders by Leases, sorted. Leases of an earlier division are omitted once another one has leaders."""
    rows = []
    for lease in leases:
        name, spec = lease["metadata"]["name"], lease.get("spec") or {}
        shard = shard_of_lease(name, base)
        if shard is None:
            continue
        holder = str(spec.get("holderIdentity") or "").rpartition("_")[0] or str(spec.get("holderIdentity") or "")
        since, heard = (str(spec.get(field) or "") for field in ("acquireTime", "renewTime"))
        turns = int(spec.get("leaseTransitions") or 0)
        rows.append((shard, Leader(str(shard), name, holder, since, heard, turns)))
    splits = {shard.of for shard, row in rows if row.holder}
    rows = [(shard, row) for shard, row in rows if not splits or shard.of in splits]
    return tuple(row for _, row in sorted(rows, key=lambda pair: (pair[0].of, pair[0].number)))


def _cells(row: Leader, now: datetime) -> tuple[str, ...]:
    ages = (
        duration_text((now - datetime.fromisoformat(at)).total_seconds()) if at else "" for at in (row.since, row.heard)
    )
    return (row.part, row.lease, row.holder or "none", *ages, str(row.turns))
