"""What a HostProcess of a Pulumi program may say."""

from __future__ import annotations

from typing import Any

import pytest

from components.providers.host_provider import input_faults
from components.providers.host_schema import OBSERVED, REQUIRED, TYPE, package_schema
from components.providers.marshalling import UNKNOWN

GOOD: dict[str, Any] = {
    "endpoint": "http://127.0.0.1:1",
    "tokenFile": "/t",
    "namespace": "prod",
    "name": "a",
    "plan": {"host": "h", "service": "a", "argv": ["x"], "serviceName": "a"},
}


def test_good_inputs_have_no_fault() -> None:
    assert input_faults(TYPE, GOOD) == []


def test_what_is_known_only_later_passes() -> None:
    assert input_faults(TYPE, {**GOOD, "endpoint": UNKNOWN, "plan": UNKNOWN}) == []
    assert input_faults(TYPE, {**GOOD, "plan": {**GOOD["plan"], "env": {"A": UNKNOWN}}}) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"name": 5}, "name"),
        ({"nmae": "typo"}, "nmae"),
        ({"plan": {"host": "h"}}, "plan.service"),
        ({"plan": {**GOOD["plan"], "argv": [1]}}, "plan.argv[0]"),
        ({"plan": {**GOOD["plan"], "file": {"source": "x"}}}, "plan.file.cacheKey"),
    ],
)
def test_a_fault_names_the_property(changes: dict[str, Any], path: str) -> None:
    assert path in [where for where, _ in input_faults(TYPE, {**GOOD, **changes})]


def test_another_resource_is_refused() -> None:
    assert input_faults("herdsman:index:Nothing", GOOD)


def test_the_schema_speaks_of_the_same_properties() -> None:
    resource = package_schema()["resources"][TYPE]
    assert set(resource["inputProperties"]) == set(REQUIRED)
    assert set(resource["properties"]) == {*REQUIRED, *OBSERVED}
