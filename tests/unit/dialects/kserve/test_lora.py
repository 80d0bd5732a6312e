"""Adapters: refused names, separate folders and volumes, and arguments that come before the user's."""

from __future__ import annotations

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.parse.lora import adapters
from tests.unit.dialects.kserve.combining import service
from tests.unit.dialects.kserve.parsing import serving


def spec(*named: tuple[str, str], **limits: int) -> Json:
    listed = [{"name": name, "uri": uri} for name, uri in named]
    return {"model": {"uri": "hf://o/m", "lora": {"adapters": listed, **limits}}}


@pytest.mark.parametrize("name", ["", "../up", "a/../b", "/etc", ".", ".."])
def test_a_name_that_is_a_way_out_is_refused(name: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        adapters(spec((name, "hf://o/l")))
    assert refused.value.field == "spec.model.lora.adapters[0].name"


def test_two_adapters_of_one_name_are_refused() -> None:
    with pytest.raises(SpecInvalid, match="two adapters"):
        adapters(spec(("a", "hf://o/l"), ("a", "hf://o/k")))


def test_an_image_is_no_adapter() -> None:
    with pytest.raises(SpecInvalid) as refused:
        adapters(spec(("a", "oci://r/l:1")))
    assert refused.value.field == "spec.model.lora.adapters[0].uri"


def test_folders_and_volumes_of_different_names_never_meet() -> None:
    names = ["a b", "a-b", "a/b", "A-B", "a_b", "x" * 200, "x" * 201, "é"]
    loaded = adapters(spec(*((name, "pvc://c/l") for name in names)))
    assert len({adapter.folder for adapter in loaded}) == len(names)
    assert len({adapter.volume for adapter in loaded}) == len(names)
    assert all("/" not in adapter.folder and len(adapter.volume) <= 63 for adapter in loaded)
    assert next(a for a in loaded if a.name == "a-b").path == "/mnt/lora/a-b"


def test_arguments_come_before_the_users_and_say_every_limit() -> None:
    template = {"containers": [{"name": "main", "args": ["--own"]}]}
    cr = service({**spec(("sql", "hf://o/sql"), maxRank=16, maxAdapters=2), "template": template})
    _, main = serving(cr)
    assert main["args"] == [
        "--enable-lora",
        "--max-lora-rank=16",
        "--max-loras=2",
        "--lora-modules",
        '{"name":"sql","path":"/mnt/lora/sql"}',
        '{"name":"publishers/team/models/sql","path":"/mnt/lora/sql"}',
        "--own",
    ]


@pytest.mark.parametrize("own", [["--lora-modules", "x=/y"], ["--lora-modules=x=/y"]])
def test_a_users_own_list_of_adapters_is_left_alone(own: list[str]) -> None:
    cr = service({**spec(("sql", "hf://o/sql")), "template": {"containers": [{"name": "main", "args": own}]}})
    assert serving(cr)[1]["args"] == own
