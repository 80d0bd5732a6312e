"""Kinds that may appear and disappear, on a fake API server: a stop during a check, and a removed kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from automation.cache.optional_apis import OptionalApis
from kubeapi import kinds
from kubeapi.errors import ServerError
from kubeapi.kinds import Kind

pytestmark = pytest.mark.slow


class Api:
    """A fake API server with the kinds in `served`; it calls `on_list` in the middle of each check."""

    def __init__(self) -> None:
        self.on_list: Any = lambda: None
        self.served: list[Kind] = []
        self.broken: Kind | None = None
        self.looks = 0

    def request(self, _method: str, _path: str) -> dict[str, Any]:
        self.looks += 1
        items = []
        for kind in self.served:
            version = {
                "version": kind.api_version.rpartition("/")[2],
                "resources": [{"responseKind": {"kind": kind.kind}}],
            }
            items.append({"metadata": {"name": kind.group}, "versions": [version]})
        return {"kind": "APIGroupDiscoveryList", "items": items}

    def list(self, kind: Kind, *_: Any, **__: Any) -> dict[str, Any]:
        self.on_list()
        if kind == self.broken:
            raise ServerError(500, "InternalError", "its conversion webhook is dead")
        return {"items": []}


class Followed:
    """An informer that is synced at once."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.runs = False

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False

    def drain(self) -> None:
        pass

    def wait_synced(self, _timeout_s: float) -> bool:
        return True


def test_a_stop_in_the_middle_of_a_look_leaves_no_informer() -> None:
    """The check outlasts the stop because its request hangs; an informer that it started then would never be
    stopped.
    """
    api, made = Api(), list[Followed]()

    def make(kind: Kind) -> Any:
        made.append(Followed(kind))
        return made[-1]

    of = (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.PODS)
    apis = OptionalApis(api, of, make=make, on_change=lambda _: None)  # type: ignore[arg-type]
    api.on_list = lambda: apis.stop() if made else None
    apis._look()
    assert [each.kind for each in made] == [kinds.DEPLOYMENTS]
    assert not made[0].runs
    assert apis.served == {kinds.DEPLOYMENTS}


def test_a_kind_that_goes_is_missed_at_once_also_while_another_one_fails_again_and_again() -> None:
    api = Api()
    api.served, api.broken = [kinds.SCALED_OBJECTS, kinds.POD_MONITORS], kinds.POD_MONITORS
    apis = OptionalApis(
        api,  # type: ignore[arg-type]
        (kinds.SCALED_OBJECTS, kinds.POD_MONITORS),
        make=Followed,  # type: ignore[arg-type]
        on_change=lambda _: None,
        retry_s=0.02,
    )
    apis.start()
    try:
        # By then the pause after a failed check has grown to more than two seconds.
        await_true(lambda: api.looks >= 8, timeout_s=20.0)
        assert apis.served == {kinds.SCALED_OBJECTS} and apis.trouble(kinds.POD_MONITORS)
        api.served = [kinds.POD_MONITORS]
        apis.recheck(kinds.SCALED_OBJECTS)
        await_true(lambda: not apis.served, timeout_s=2.0)
    finally:
        apis.stop()


def test_a_kind_that_is_followed_again_has_no_trouble_though_the_check_goes_on() -> None:
    api = Api()
    api.served, api.broken = [kinds.SCALED_OBJECTS], kinds.SCALED_OBJECTS
    of = (kinds.SCALED_OBJECTS, kinds.POD_MONITORS)
    apis = OptionalApis(api, of, make=Followed, on_change=lambda _: None)  # type: ignore[arg-type]
    apis._look()
    assert apis.trouble(kinds.SCALED_OBJECTS)

    seen: list[tuple[frozenset[Kind], str, dict[Kind, str]]] = []
    api.served, api.broken = list(of), None
    api.on_list = lambda: seen.append((apis.served, apis.trouble(kinds.SCALED_OBJECTS), apis.troubles()))
    apis._look()
    assert seen[-1] == ({kinds.SCALED_OBJECTS}, "", {}), "the list of the second kind comes after the first is followed"


def await_true(look: Callable[[], bool], *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)
