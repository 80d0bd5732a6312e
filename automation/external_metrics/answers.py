"""The external metrics API: its paths, its answers, its label selectors. Pure; called by `server`.

The API is `external.metrics.k8s.io/v1beta1`. Its answers are those of the types in k8s.io/metrics. Discovery names one
metric; a GET of the metric in a namespace returns one item for each service.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

from components.scaling import LABEL_DIALECT, LABEL_SERVICE, REQUESTS_METRIC
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
ROOT = f"/apis/{API_VERSION}"
LIST_KIND = "ExternalMetricValueList"

_METRIC_PATH = re.compile(re.escape(ROOT) + r"/namespaces/([^/]+)/([^/]+)")
_REASONS = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
}
_NAME = r"[A-Za-z0-9][-A-Za-z0-9_./]{0,316}"
_EQUAL = re.compile(rf"({_NAME})\s*(==?|!=)\s*([-A-Za-z0-9_.]*)")
_AMONG = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_NAME})")
_PARTS = re.compile(r",(?![^()]*\))")
"""A comma outside of parentheses."""

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]


class SelectorInvalid(ValueError):
    """The text is no label selector."""


@dataclass(frozen=True)
class Question:
    """A request for the values of the metric in a namespace."""

    namespace: str
    selects: Selector

    def wants(self, key: ServiceKey) -> bool:
        """Return whether the labels of a service are selected."""
        return self.selects(_labels(key))


def read(target: str) -> Question | None:
    """Read the target of a GET. None asks for discovery. Raises LookupError for a path that is not served, and
    SelectorInvalid.
    """
    parts = urlsplit(target)
    if parts.path.rstrip("/") == ROOT:
        return None
    found = _METRIC_PATH.fullmatch(parts.path)
    if found is None or unquote(found[2]) != REQUESTS_METRIC:
        raise LookupError(f"`{parts.path[:200]}` is not served; the only metric is {REQUESTS_METRIC}")
    query = parse_qs(parts.query, keep_blank_values=True)
    return Question(unquote(found[1]), selector(query.get("labelSelector", [""])[-1]))


def resource_list() -> Json:
    """Return the document of discovery."""
    metric = {
        "name": REQUESTS_METRIC,
        "singularName": "",
        "namespaced": True,
        "kind": LIST_KIND,
        "verbs": ["get"],
    }
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": [metric]}


def value_list(values: Mapping[ServiceKey, int], *, now: str) -> Json:
    """Return the values of services of one namespace. `now` is RFC 3339."""
    items = [
        {"metricName": REQUESTS_METRIC, "metricLabels": _labels(key), "timestamp": now, "value": str(value)}
        for key, value in sorted(values.items())
    ]
    return {"kind": LIST_KIND, "apiVersion": API_VERSION, "metadata": {}, "items": items}


def _labels(key: ServiceKey) -> dict[str, str]:
    return {LABEL_SERVICE: key.name, LABEL_DIALECT: key.dialect}


def failure(status: HTTPStatus, message: str) -> bytes:
    """Return the Status of Kubernetes' API for an error."""
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": _REASONS.get(status, "InternalError"),
            "code": status.value,
        }
    ).encode()


def selector(text: str) -> Selector:
    """Read a label selector of Kubernetes: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, joined by commas.

    Raises SelectorInvalid.
    """
    if not text.strip():
        return lambda _: True
    terms = [_term(part.strip()) for part in _PARTS.split(text)]
    return lambda labels: all(term(labels) for term in terms)


def _term(text: str) -> Selector:
    if found := _EQUAL.fullmatch(text):
        name, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    if found := _AMONG.fullmatch(text):
        name, operator, among = found.groups()
        values = {each.strip() for each in among.split(",")}
        if operator == "notin":
            return lambda labels: labels.get(name) not in values
        return lambda labels: labels.get(name) in values
    if found := _EXISTS.fullmatch(text):
        absent, name = bool(found[1]), found[2]
        return lambda labels: (name not in labels) == absent
    raise SelectorInvalid(f"`{text[:100]}` is not a requirement of a label selector")
