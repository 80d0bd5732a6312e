"""The form of a Grafana dashboard: panels in rows, a data source and variables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kubeapi.json_types import Json

SCHEMA_VERSION = 39
"""The schema of Grafana 10.4 and newer."""
COLUMNS = 24
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """One query of a panel. `legend` may name labels (`{{namespace}}`)."""

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's name of the unit: short, s, bytes, percentunit, reqps."""

    title: str
    queries: tuple[Query, ...]
    about: str = ""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False

    @classmethod
    def of(cls, title: str, expr: str, legend: str = "", **fields: Any) -> Panel:
        """Make a panel with one query."""
        return cls(title=title, queries=(Query(expr, legend),), **fields)


def stat(title: str, expr: str, *, about: str = "", unit: str = "short") -> Panel:
    """Make a panel with a single number, a quarter of the width."""
    return Panel(title, (Query(expr, instant=True),), about=about, unit=unit, kind="stat", width=6, height=4)


def table(title: str, expr: str, *, about: str = "", width: int = COLUMNS) -> Panel:
    """Make a table with a row for each series and its labels as columns."""
    return Panel(title, (Query(expr, instant=True),), about=about, kind="table", width=width, height=9)


def dashboard(uid: str, title: str, about: str, panels: Sequence[Panel], *, variables: Sequence[Json] = ()) -> Json:
    """Build a dashboard. The same input gives the same document."""
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["herdsman"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_DATA_SOURCE_VARIABLE, *variables]},
        "annotations": {"list": []},
        "panels": _laid_out(panels),
    }


_DATA_SOURCE_VARIABLE: Json = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
}


def choice(name: str, metric: str, *, label: str) -> Json:
    """Make a variable that lists the values of a metric's label of the same name.

    Without a choice, all are selected.
    """
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATA_SOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": "A"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(panels: Sequence[Panel]) -> list[Json]:
    """Fill rows from left to right; a panel that does not fit begins the next one."""
    placed = []
    x = y = tallest = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append(_panel(panel, number, x=x, y=y))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return placed


def _panel(panel: Panel, number: int, *, x: int, y: int) -> Json:
    custom: Json = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if panel.stacked else {}
    document: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATA_SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATA_SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "instant": query.instant,
                "range": not query.instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
    if panel.kind == "table":
        hidden = {"Time": True, "Value": True, "__name__": True, "job": True, "instance": True, "pod": True}
        document["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return document
