"""`herdsman usage`: what the clients of the gateway have used, from the store of their accounts."""

from __future__ import annotations

import csv
import io
import time
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import typer

from automation.cli.duration_argument import duration_s
from automation.cli.output import complain, print_json, print_table, say
from gateway.accounting import stores
from gateway.accounting.stores import Store, StoreAway, StoreInvalid
from gateway.accounting.usage_report import UsageBy, UsageRow
from gateway.price import NANO_USD_PER_USD


class UsageFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def usage(
    by: Annotated[UsageBy, typer.Option(help="Sum for each key, team, model or hour.")] = UsageBy.KEY,
    since: Annotated[str, typer.Option(help="Length of the time until now, as in 24h or 7d.")] = "7d",
    output: Annotated[UsageFormat, typer.Option("-o", "--output", help="table, json or csv.")] = UsageFormat.TABLE,
) -> None:
    """Show the requests, tokens and costs of the gateway's clients.

    Reads the store of the gateway: the one that HERDSMAN_GATEWAY_STORE or HERDSMAN_GATEWAY_STORE_FILE names, else the
    SQLite database of this user. The last second may be missing.
    """
    since_s = time.time() - duration_s(since, "--since")
    try:
        store = _store()
        found = store.usage_since(since_s, by)
        store.close()
    except (StoreAway, StoreInvalid) as error:
        complain(f"the usage cannot be read: {error}")
        raise typer.Exit(1) from None
    rows = [_shown(row, by) for row in found]
    if output is UsageFormat.JSON:
        print_json(rows)
        return
    columns = (*_named(by), *_SUMS)
    if output is UsageFormat.CSV:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        say(text.getvalue(), nl=False)
        return
    print_table([_TITLES[name] for name in columns], [[str(row[name]) for name in columns] for row in rows])


_SUMS = (
    "requests",
    "failed",
    "incomplete",
    "estimated",
    "promptTokens",
    "cachedTokens",
    "completionTokens",
    "usd",
)
_TITLES = {
    "key": "KEY",
    "id": "ID",
    "team": "TEAM",
    "model": "MODEL",
    "hour": "HOUR",
    "requests": "REQUESTS",
    "failed": "FAILED",
    "incomplete": "INCOMPLETE",
    "estimated": "ESTIMATED",
    "promptTokens": "PROMPT",
    "cachedTokens": "CACHED",
    "completionTokens": "COMPLETION",
    "usd": "USD",
}


def _named(by: UsageBy) -> tuple[str, ...]:
    return ("key", "id") if by is UsageBy.KEY else (by.value,)


def _shown(row: UsageRow, by: UsageBy) -> dict[str, object]:
    named: dict[str, object] = {by.value: row.name or "-"}
    if by is UsageBy.KEY:
        named["id"] = row.key_id or "-"
    if by is UsageBy.HOUR:
        named["hour"] = datetime.fromtimestamp(int(row.name), UTC).isoformat().replace("+00:00", "Z")
    *numbers, nano_usd = row.usage
    return named | dict(zip(_SUMS, (*numbers, f"{Decimal(nano_usd) / NANO_USD_PER_USD:f}"), strict=True))


def _store() -> Store:
    """Return the store to read. Raises StoreInvalid."""
    found = stores.existing()
    if found is None:
        path = stores.default_path()
        raise StoreInvalid(f"no gateway of this user has written {path}; {stores.VARIABLE} names another store")
    return found
