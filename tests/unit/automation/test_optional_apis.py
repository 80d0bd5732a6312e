"""Kinds that may come and go, on an API server that is played: what a stop in the middle of a look leaves behind."""

from __future__ import annotations

from typing import Any

from automation.optional_apis import OptionalApis
from kubeapi import kinds
from kubeapi.kinds import Kind


class Api:
    """Serves built-in kinds and nothing else; `on_list` is called in the middle of each look."""

    def __init__(self) -> None:
        self.on_list: Any = lambda: None

    def request(self, _method: str, _path: str) -> dict[str, Any]:
        return {"kind": "APIGroupDiscoveryList", "items": []}

    def list(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.on_list()
        return {"items": []}


class Followed:
    """An informer that knows everything at once."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.runs = False

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False

    def wait_synced(self, _timeout_s: float) -> bool:
        return True


def test_a_stop_in_the_middle_of_a_look_leaves_no_informer() -> None:
    """The look outlasts the stop where a request hangs; nobody would stop an informer that it starts then."""
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
