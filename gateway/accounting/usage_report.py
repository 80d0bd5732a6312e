"""Sums the recorded usage for `herdsman usage`. Reads the store, and writes nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from gateway.accounting.ledger_job import Transaction, Usage


class UsageBy(StrEnum):
    """What usage is summed for."""

    KEY = "key"
    TEAM = "team"
    MODEL = "model"
    HOUR = "hour"


_COLUMNS = {
    UsageBy.KEY: "key_name, key_id",
    UsageBy.TEAM: "team",
    UsageBy.MODEL: "model",
    UsageBy.HOUR: "hour",
}


class UsageRow(NamedTuple):
    """The usage of one key, team, model or hour."""

    name: str
    """Of the key, team or model, empty for requests without one; of an hour its start in seconds since 1970."""
    key_id: str
    usage: Usage


def usage_since(transaction: Transaction, since_s: float, by: UsageBy) -> list[UsageRow]:
    """Return the usage since a time, in seconds since 1970: hours in their order, others by their tokens."""
    sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in Usage._fields)
    columns = _COLUMNS[by]
    order = "hour" if by is UsageBy.HOUR else f"SUM(prompt_tokens + completion_tokens) DESC, {columns}"
    rows = transaction.execute(
        f"SELECT {columns}, {sums} FROM herdsman_gateway_usage WHERE hour > ? "  # noqa: S608 - names of this module
        f"GROUP BY {columns} ORDER BY {order}",
        int(since_s) - 3600,
    )
    return [_row(row, by) for row in rows]


def _row(row: tuple[Any, ...], by: UsageBy) -> UsageRow:
    names = 2 if by is UsageBy.KEY else 1
    key_id = str(row[1]) if by is UsageBy.KEY else ""
    return UsageRow(str(row[0]), key_id, Usage(*(int(value) for value in row[names:])))
