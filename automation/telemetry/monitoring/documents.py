"""All files of docs/monitoring, by path and text. Pure; `herdsman monitoring` writes them."""

from __future__ import annotations

import json

import yaml

from automation.telemetry.monitoring.alerts import prometheus_rule, rules_file
from automation.telemetry.monitoring.dashboards import dashboards
from kubeapi.json_types import Json

_HEADER = "# Made by `herdsman monitoring`; do not edit.\n"


def documents() -> dict[str, str]:
    """Return each file's text by its path below the directory; the same in every call."""
    files = {f"dashboards/{name}.json": json.dumps(board, indent=2) + "\n" for name, board in dashboards().items()}
    files["alerts/rules.yaml"] = _yaml(rules_file())
    files["alerts/prometheus-rule.yaml"] = _yaml(prometheus_rule())
    return files


def _yaml(document: Json) -> str:
    return _HEADER + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
