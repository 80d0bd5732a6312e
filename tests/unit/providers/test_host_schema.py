"""The valid fields of a HostProcess in a Pulumi program."""

from __future__ import annotations

from typing import Any

import pytest

from components.providers.host_schema import AGENT, INPUTS, OBSERVED, REQUIRED, TYPE, input_faults, package_schema
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
    assert input_faults(TYPE, {**GOOD, "endpoint": "https://10.0.0.7:8443", "caFile": "/mac.crt"}) == []
    assert input_faults(TYPE, {**GOOD, "fingerprint": UNKNOWN}) == []


def test_what_is_known_only_later_passes() -> None:
    assert input_faults(TYPE, {**GOOD, "endpoint": UNKNOWN, "plan": UNKNOWN}) == []
    assert input_faults(TYPE, {**GOOD, "plan": {**GOOD["plan"], "env": {"A": UNKNOWN}}}) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"name": 5}, "name"),
        ({"caFile": 5}, "caFile"),
        ({"nmae": "typo"}, "nmae"),
        ({"plan": {"host": "h"}}, "plan.service"),
        ({"plan": {**GOOD["plan"], "argv": [1]}}, "plan.argv[0]"),
        ({"plan": {**GOOD["plan"], "file": {"source": "x"}}}, "plan.file.cacheKey"),
    ],
)
def test_a_fault_names_the_property(changes: dict[str, Any], path: str) -> None:
    assert path in [where for where, _ in input_faults(TYPE, {**GOOD, **changes})]


SSH: dict[str, Any] = {
    "transport": "ssh",
    "ssh": {"address": "10.0.0.1", "port": 22.0, "user": "me", "identityFile": "/key", "bastion": {"address": "b"}},
    **{name: GOOD[name] for name in ("namespace", "name", "plan")},
}


def test_a_host_over_ssh_needs_no_agent() -> None:
    assert input_faults(TYPE, SSH) == []
    assert input_faults(TYPE, {**SSH, "transport": None}) == []
    assert input_faults(TYPE, {**SSH, "ssh": UNKNOWN}) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"transport": "telnet"}, "transport"),
        ({"transport": "agent"}, "ssh"),
        ({"endpoint": "http://127.0.0.1:1"}, "endpoint"),
        ({"fingerprint": "0" * 64}, "fingerprint"),
        ({"ssh": None}, "ssh"),
        ({"ssh": {"address": "a", "user": "me"}}, "ssh.identityFile"),
        ({"ssh": {**SSH["ssh"], "password": "no"}}, "ssh.password"),
        ({"ssh": {**SSH["ssh"], "port": 99999}}, "ssh.port"),
        ({"ssh": {**SSH["ssh"], "sudo": "yes"}}, "ssh.sudo"),
        ({"ssh": {**SSH["ssh"], "bastion": {"port": 22}}}, "ssh.bastion.address"),
    ],
)
def test_a_fault_of_the_way_names_the_property(changes: dict[str, Any], path: str) -> None:
    assert path in [where for where, _ in input_faults(TYPE, {**SSH, **changes})]


def test_another_resource_is_refused() -> None:
    assert input_faults("herdsman:index:Nothing", GOOD)


def test_the_schema_speaks_of_the_same_properties() -> None:
    resource = package_schema()["resources"][TYPE]
    assert set(resource["inputProperties"]) == set(INPUTS) >= {*REQUIRED, *AGENT}
    assert set(resource["properties"]) == {*INPUTS, *OBSERVED}
