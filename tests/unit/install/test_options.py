"""The options of `install`, and combinations that are refused before any request."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from automation.install.options import InstallOptions


def refusal(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        InstallOptions(**given)
    return str(caught.value)


def test_two_loops_need_a_state_and_a_passphrase_that_both_reach() -> None:
    assert "both can reach" in refusal(replicas=2)
    assert "passphrase" in refusal(replicas=2, state="s3://bucket")
    assert InstallOptions(replicas=2, state="s3://bucket", passphrase_secret="phrase").replicas == 2
    assert "1" in refusal(replicas=0) and "2" in refusal(replicas=3)


@pytest.mark.parametrize("url", ["postgres://me:pw@db/x", "postgres://db/x?password=pw", "azblob://c?sas=abc"])
def test_credentials_go_into_a_secret_and_never_into_a_deployment(url: str) -> None:
    said = refusal(state=url, passphrase_secret="phrase")
    assert "Secret" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"state": "file:///x"}, "claim"),
        ({"state": "nonsense"}, "not the URL"),
        ({"state": "s3://b", "state_secret": "x", "passphrase_secret": "p"}, "one of them"),
        ({"namespace": "Not A Name"}, "not a valid name"),
        ({"namespace": ""}, "empty"),
        ({"memory": "much"}, "memory"),
        ({"memory": "1Gi\n"}, "memory"),
        ({"state_claim_size": "5 GB"}, "state_claim_size"),
        ({"settings": {"no_such": "1"}}, "no setting `no_such`"),
        ({"settings": {"workers": "many"}}, "workers"),
        ({"settings": {"state": "file:///x"}}, "the installation sets"),
        ({"image": ""}, "image"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_makes_no_sense_is_named(given: dict[str, Any], said: str) -> None:
    assert said in refusal(**given)


def test_settings_are_written_as_the_loop_knows_them() -> None:
    options = InstallOptions(settings={"Model-Cache-Size": "200Gi", "workers": "8"})
    assert options.settings == {"model_cache_size": "200Gi", "workers": "8"}
