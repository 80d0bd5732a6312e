"""`herdsman catalog` without a cluster and without network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automation.catalog.entries import Catalog
from automation.catalog.fits import entry_object, fits, fits_text, tokens_text
from automation.catalog.fitting import Room
from automation.catalog.loading import load
from automation.cli.main import EXIT_FAILED, invoke
from tests.support.model_server import FileServer

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_models_are_listed_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["catalog", "list"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["ID", "PARAMETERS", "SIZE", "CONTEXT", "LICENCE", "CAN", "FITS"]
    assert ["qwen3.5-4b", "4B", "2.6G", "256K", "Apache-2.0", "tools,vision,reasoning"] in [row[:6] for row in lines]
    assert "No cluster answers" in err
    assert "for models" in err


def test_scripts_get_a_list_of_objects_on_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["catalog", "list", "-o", "json", "--local"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) >= 25
    assert all({"id", "source", "bytes", "context", "licence", "fits"} <= set(each) for each in found)
    (small,) = (each for each in found if each["id"] == "qwen3.5-0.8b")
    assert (small["bytes"], small["context"], small["licence"]) == (579615840, 262144, "Apache-2.0")
    (fit,) = small["fits"]
    assert fit["neededBytes"] == fit["weightsBytes"] + fit["cacheBytes"] + fit["buffersBytes"]


def test_the_wide_table_has_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["catalog", "list", "-o", "wide", "--local"]) == 0
    assert "hf://unsloth/Qwen3.5-4B-GGUF@" in capsys.readouterr().out


def test_one_model_is_shown_with_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["catalog", "info", "llama-3.2-3b", "--context", "4096", "-q", "q8_0", "--local"]) == 0
    out = capsys.readouterr().out
    assert "Licence:      llama3.2" in out
    assert "Q8_0 with 4,096 tokens of context" in out
    assert "weights 3.2 GiB + KV cache 0.4 GiB + buffers" in out


def test_a_model_that_does_not_fit_is_shown_with_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    huge = Catalog.model_validate(
        {
            "version": 1,
            "models": [
                {
                    "id": "huge",
                    "variants": [
                        {"quant": "Q8_0", "repository": "o/h", "files": [{"path": "h.gguf", "bytes": 1 << 50}]}
                    ],
                }
            ],
        }
    )
    (found,) = fits(huge.models[0], [Room("box", GIB)])
    assert (found.choice, entry_object(huge.models[0], [found])["fits"][0]["fits"]) == (None, False)
    assert fits_text([found]) == "-"


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["info", "qwen3.5-4"], "no model `qwen3.5-4`", "did you mean `qwen3.5-4b`"),
        (["info", "qwen3-8b", "-q", "Q2_K"], "no variant `Q2_K`", "Q4_K_M"),
        (["info", "qwen3-8b", "--vision"], "no projector for model `qwen3-8b`", "spec.mmproj"),
        (["info", "qwen3-8b", "--context", "50000"], "trained with 40,960 tokens", "at most 40,960"),
        (["list", "--catalog", "/none/x.yaml"], "cannot be read: No such file", ""),
        (["list", "--catalog", "http://x.example/c"], "not fetched over http", "https"),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], said: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["catalog", *arguments]) == EXIT_FAILED
    out, err = capsys.readouterr()
    assert said in err
    assert hint in err
    assert out == ""


def test_a_named_kubeconfig_without_a_cluster_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert invoke(["catalog", "list", "--kubeconfig", str(tmp_path / "missing")]) == EXIT_FAILED
    assert "--local" in capsys.readouterr().err


def test_another_catalog_replaces_the_own_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    variant = {"quant": "F16", "repository": "me/mine", "files": [{"path": "m.gguf", "bytes": 5}]}
    path.write_text(json.dumps({"version": 1, "models": [{"id": "mine", "variants": [variant]}]}))
    assert invoke(["catalog", "list", "--local", "-o", "json", "--catalog", str(path)]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["mine"]


def test_each_place_has_its_own_best_variant() -> None:
    entry = load().entry("qwen3.6-35b-a3b")
    rooms = [Room("mac", 24 * GIB, "metal"), Room("box", 24 * GIB, "cuda"), Room("box", 64 * GIB), Room("pi", 4 * GIB)]
    found = fits(entry, rooms)
    assert [(each.place, each.choice and each.choice.variant.quant) for each in found] == [
        ("mac", "UD-Q4_K_M"),
        ("box", "UD-Q4_K_M"),
        ("pi", None),
    ]
    assert fits_text(found, long=True) == "mac: UD-Q4_K_M 32K, box: UD-Q4_K_M 32K"
    assert (tokens_text(None), tokens_text(40960), tokens_text(1000)) == ("-", "40K", "1000")


def test_a_cluster_without_herdsman_is_told_from_one_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with FileServer() as nothing_found:
        cluster = {"name": "c", "cluster": {"server": nothing_found.url("")}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
        config |= {"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "c"}
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        assert invoke(["catalog", "list", "--kubeconfig", str(path)]) == 0
    assert "no ready host and no labelled GPU node" in capsys.readouterr().err
