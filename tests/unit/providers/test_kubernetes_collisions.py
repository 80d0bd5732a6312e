"""The items of a live list that collide with a wanted item, and how a dry run leaves them out."""

from __future__ import annotations

from typing import Any

import pytest

from components.providers.kubernetes_conflicts import collisions, left_out, put_in
from kubeapi.json_types import Json

HTTP: Json = {"name": "http", "port": 80}


def service(*ports: Any) -> Json:
    return {"kind": "Service", "spec": {"ports": list(ports)}}


@pytest.mark.parametrize(
    ("live", "losers"),
    [
        ([{"name": "http", "port": 80}], []),
        ([{"name": "http", "port": 80, "protocol": "UDP"}], [0]),
        ([{"name": "other", "port": 80}, {"name": "http", "port": 81}], [1]),
        ([{"name": "other", "port": 81}, {"name": "third", "port": 82}], []),
        ([{"port": 81}], [0]),
    ],
)
def test_a_port_loses_where_its_name_is_that_of_a_wanted_port(live: list[Json], losers: list[int]) -> None:
    found = collisions(service(HTTP), service(*live))
    assert [path[-1] for each in found for path in each.losers] == losers


@pytest.mark.parametrize("wanted", ["http", [None], ["http"], [{}], {"port": 80}])
def test_ports_that_are_no_list_of_ports_collide_with_nothing(wanted: Any) -> None:
    live = service({"name": "http", "port": 81})
    assert collisions({"kind": "Service", "spec": {"ports": wanted}}, live) == ()
    pod = {"spec": {"template": {"spec": {"containers": wanted, "initContainers": wanted}}}}
    running = {"spec": {"template": {"spec": {"containers": [{"name": "main"}], "initContainers": []}}}}
    assert collisions(pod, running) == ()


def test_a_dry_run_leaves_the_colliding_items_out_and_puts_them_where_the_api_server_does() -> None:
    wanted = service(HTTP, {"name": "metrics", "port": 90})
    live = service({"name": "http", "port": 81}, {"name": "theirs", "port": 70}, {"name": "metrics", "port": 90})
    found = collisions(wanted, live)
    assert left_out(wanted, found) == service()
    after = put_in(live, found, wanted, live)
    assert [port["port"] for port in after["spec"]["ports"]] == [70, 80, 90]
