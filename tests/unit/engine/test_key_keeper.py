"""The key keeper, over its real HTTP server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from automation.engine.key_keeper import KeyKeeper, ensure_passphrase

pytestmark = pytest.mark.slow

WRAPPED_BY_AES = "vault:v1:hBtup1SbkKWDUAsuhWez3/KiENevFkxi9Xs7P1rIAd3vp8JcxnLEy8xIm+TsiwLPb3yd/eovv2ZRua0/"
"""PLAIN as a development version wrapped it, with the passphrase `correct horse`."""
PLAIN = base64.b64encode(b"a data key of thirty-two bytes..").decode()


@pytest.fixture
def keeper() -> Iterator[KeyKeeper]:
    made = KeyKeeper("correct horse")
    yield made
    made.close()


def ask(keeper: KeyKeeper, path: str, body: object, *, token: str | None = None) -> tuple[int, dict[str, object]]:
    env = keeper.environment()
    response = urllib3.request(
        "PUT",
        env["VAULT_SERVER_URL"] + path,
        body=body if isinstance(body, bytes) else json.dumps(body),
        headers={"X-Vault-Token": env["VAULT_SERVER_TOKEN"] if token is None else token},
    )
    return response.status, response.json()


def test_what_is_wrapped_can_be_unwrapped_with_the_same_passphrase_only(keeper: KeyKeeper) -> None:
    status, answer = ask(keeper, "/v1/transit/encrypt/herdsman", {"plaintext": PLAIN})
    assert status == 200
    wrapped = answer["data"]
    assert isinstance(wrapped, dict)
    assert PLAIN not in wrapped["ciphertext"]
    for passphrase, expected in (("correct horse", 200), ("battery staple", 400)):
        other = KeyKeeper(passphrase)
        status, answer = ask(other, "/v1/transit/decrypt/herdsman", wrapped)
        assert status == expected
        assert (answer.get("data") == {"plaintext": PLAIN}) is (expected == 200)
        other.close()


@pytest.mark.parametrize(("passphrase", "expected"), [("correct horse", 200), ("battery staple", 400)])
def test_what_development_versions_wrapped_is_unwrapped(passphrase: str, expected: int) -> None:
    keeper = KeyKeeper(passphrase)
    status, answer = ask(keeper, "/v1/transit/decrypt/herdsman", {"ciphertext": WRAPPED_BY_AES})
    keeper.close()
    assert status == expected
    assert (answer.get("data") == {"plaintext": PLAIN}) is (expected == 200)


def test_a_changed_passphrase_wraps_old_keys_again() -> None:
    before = KeyKeeper("battery staple")
    key = before.new_data_key()
    before.close()
    after = KeyKeeper("correct horse", old_passphrase="battery staple")
    old_key = base64.b64encode(WRAPPED_BY_AES.encode()).decode()
    for each in (key, old_key):
        again = after.rewrapped(each)
        assert again is not None and after.opens(again)
        assert base64.b64decode(again).startswith(b"vault:v2:")
    assert not after.opens(key) and after.opens(old_key)
    after.close()


def test_a_new_data_key_is_one_that_the_keeper_opens_and_no_two_are_alike(keeper: KeyKeeper) -> None:
    one, other = keeper.new_data_key(), keeper.new_data_key()
    assert one != other
    wrapped = base64.b64decode(one).decode()
    status, answer = ask(keeper, "/v1/transit/decrypt/herdsman", {"ciphertext": wrapped})
    assert status == 200
    data = answer["data"]
    assert isinstance(data, dict)
    assert len(base64.b64decode(data["plaintext"])) == 32


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_nothing_is_answered(keeper: KeyKeeper, token: str) -> None:
    status, answer = ask(keeper, "/v1/transit/encrypt/herdsman", {"plaintext": PLAIN}, token=token)
    assert (status, "data" in answer) == (403, False)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/transit/decrypt/herdsman", {"ciphertext": "vault:v1:AAAA"}, 400),
        ("/v1/transit/decrypt/herdsman", {"ciphertext": "vault:v2:AAAA"}, 400),
        ("/v1/transit/decrypt/herdsman", {"ciphertext": "not base64 !"}, 400),
        ("/v1/transit/decrypt/herdsman", {}, 400),
        ("/v1/transit/decrypt/herdsman", b"{", 400),
        ("/v1/transit/encrypt/herdsman", [], 400),
        ("/v1/transit/encrypt/other", {"plaintext": PLAIN}, 404),
        ("/v1/sys/health", {}, 404),
        ("/v1/transit/encrypt/herdsman", b"x" * 70_000, 413),
    ],
)
def test_bad_questions_get_a_status_and_break_nothing(keeper: KeyKeeper, path: str, body: object, status: int) -> None:
    assert ask(keeper, path, body)[0] == status
    assert ask(keeper, "/v1/transit/encrypt/herdsman", {"plaintext": PLAIN})[0] == 200


def test_a_passphrase_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state/passphrase"
    made = ensure_passphrase(path)
    assert len(made) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_passphrase(path) == made


def test_a_given_passphrase_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "passphrase"
    path.write_text("my own\n")
    assert ensure_passphrase(path) == "my own"
