"""Repairs of states: encrypted with a new passphrase, read from files, found although one of them is broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.engine import recovery
from automation.engine.key_keeper import KeyKeeper, PassphraseMissing, read_passphrase
from automation.engine.port import Stack, StateSealed, StateUnreadable
from automation.engine.sharding import Sharding
from automation.engine.stack_states import has_secrets, opens, resealed
from automation.engine.state_files import StateFiles
from automation.engine.workspace import Workspace
from program.desired.keys import ServiceKey
from tests.fakes.rendered import key

pytestmark = pytest.mark.slow

SEALED = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "djE6AAAA"}


@pytest.fixture
def keepers() -> Iterator[tuple[KeyKeeper, KeyKeeper, KeyKeeper]]:
    """A key keeper with the old passphrase, one with the new one, and one with both."""
    made = KeyKeeper("old"), KeyKeeper("new"), KeyKeeper("new", old_passphrase="old")
    yield made
    for keeper in made:
        keeper.close()


def export(keeper: KeyKeeper, **outputs: Any) -> dict[str, Any]:
    state = {"url": "hashivault://herdsman", "encryptedkey": keeper.new_data_key()}
    resources = [{"urn": "a", "outputs": outputs}]
    return {
        "version": 3,
        "deployment": {"secrets_providers": {"type": "cloud", "state": state}, "resources": resources},
    }


def test_a_state_without_secrets_gets_a_new_key_and_keeps_all_else(keepers: tuple[KeyKeeper, ...]) -> None:
    old, new, _ = keepers
    before = export(old, plain="x")
    after = resealed(before, new)
    assert (opens(before, new), opens(after, new), opens(before, old)) == (False, True, True)
    assert after["deployment"]["resources"] == before["deployment"]["resources"]


def test_a_state_with_secrets_is_given_no_other_key(keepers: tuple[KeyKeeper, ...]) -> None:
    old, new, both = keepers
    before = export(old, password=SEALED)
    assert has_secrets(before["deployment"])
    with pytest.raises(StateSealed, match="rekey --old-passphrase-file"):
        resealed(before, new)
    # A keeper that also has the old passphrase decrypts the state's key and encrypts it with the new one. The key stays
    # the same, so the secrets in the state can still be read.
    assert opens(resealed(before, both), new)
    sealed = before["deployment"]["secrets_providers"]["state"]["encryptedkey"]
    again = both.rewrapped(sealed)
    assert again is not None
    assert old._plain(sealed, old._cipher) == new._plain(again, new._cipher)


def test_a_state_of_another_kind_of_key_is_nobody_s_business(keepers: tuple[KeyKeeper, ...]) -> None:
    new = keepers[1]
    assert opens({"deployment": {"secrets_providers": {"type": "passphrase", "state": {"salt": "v1:x"}}}}, new)
    assert opens({"deployment": None}, new)


def test_settings_of_a_stack_follow_the_passphrase(keepers: tuple[KeyKeeper, ...], tmp_path: Path) -> None:
    old, new, _ = keepers
    workspace = Workspace(tmp_path)
    settings = workspace.directory(Stack("ns"), old).path / "Pulumi.ns.yaml"
    first = settings.read_text()
    workspace.directory(Stack("ns"), old)
    assert settings.read_text() == first
    workspace.directory(Stack("ns"), new)
    assert settings.read_text() != first
    settings.write_text("")
    workspace.directory(Stack("ns"), new)
    assert "encryptedkey: " in settings.read_text()


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_passphrase_that_was_named_and_is_not_there_is_not_made_up(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "passphrase"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PassphraseMissing, match="passphrase"):
        read_passphrase(path)
    path.write_text("correct horse\n")
    assert read_passphrase(path) == "correct horse"


def test_locks_and_exports_are_read_from_files(tmp_path: Path) -> None:
    files, stack = StateFiles(tmp_path), Stack("ns")
    stacks = tmp_path / ".pulumi/stacks/herdsman"
    stacks.mkdir(parents=True)
    assert (files.export(stack), files.holder(stack)) == (None, None)
    content = {"version": 4, "features": ["f"], "checkpoint": {"latest": {"resources": [{"urn": "a"}]}}}
    (stacks / "ns.json").write_text(json.dumps(content))
    (stacks / "team.eu.json").write_text(json.dumps(content))
    assert files.names() == {"ns", "team.eu"}
    assert files.export(stack) == {"version": 4, "features": ["f"], "deployment": {"resources": [{"urn": "a"}]}}
    lock = tmp_path / ".pulumi/locks/organization/herdsman/ns/1.json"
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps({"pid": 7, "username": "ann", "hostname": "mac", "timestamp": "2026-11-20T08:00:00Z"}))
    assert files.holder(stack) == ("ann@mac (pid 7)", "2026-11-20T08:00:00Z")
    lock.write_text("")
    assert files.holder(stack) == ("unknown", "unknown")


def test_half_a_mark_of_the_layout_is_mended(tmp_path: Path) -> None:
    files, mark = StateFiles(tmp_path), tmp_path / ".pulumi/meta.yaml"
    (tmp_path / ".pulumi/stacks/herdsman").mkdir(parents=True)
    files.mend()
    assert not mark.exists()
    mark.write_text("ver")
    files.mend()
    assert mark.read_text() == "version: 1\n"


def test_the_holder_of_a_lock_is_read_from_what_the_cli_says() -> None:
    created = "s3://b/1.json: created by ann@mac (pid 7) at 2026-11-20T08:00:00Z"
    text = f"the stack is currently locked by 1 lock(s).\n  {created}"
    assert recovery.lock_of(text) == ("ann@mac (pid 7)", "2026-11-20T08:00:00Z")
    assert recovery.lock_of("error: a stack named ns already exists") is None
    assert recovery.lock_of("error: unexpected end of JSON input") == ("unknown", "unknown")


class OneBroken:
    """An engine that cannot list its stacks until the broken one was inspected, as the real engine."""

    def __init__(self, held: dict[Stack, set[ServiceKey]], broken: Stack) -> None:
        self._held = held
        self._broken: Stack | None = broken

    def stacks(self) -> set[Stack]:
        if self._broken is not None:
            raise StateUnreadable("no JSON")
        return set(self._held)

    def services(self, stack: Stack) -> set[ServiceKey]:
        if stack == self._broken:
            self._broken = None
            return set()
        return self._held.get(stack, set())

    def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
        return dict.fromkeys(self.services(stack), 3)


def test_one_broken_state_hides_no_service_of_others() -> None:
    held = {Stack("prod"): {key("a", "prod")}, Stack("prod", 1): {key("b", "prod")}, Stack("dev"): {key("c", "dev")}}
    engine: Any = OneBroken(held, Stack("dev"))
    sharding = Sharding(engine)
    assert sharding.find(key("b", "prod")) == Stack("prod", 1)
    assert sharding.assign_stack(key("c", "dev")) == Stack("dev")
    assert sharding.find(key("a", "prod")) == Stack("prod")


def test_a_broken_state_hides_none_of_the_stacks_after_it() -> None:
    held = {Stack("prod"): {key("a", "prod")}, Stack("prod", 1): {key("b", "prod")}, Stack("prod", 2): set()}
    engine: Any = OneBroken(held, Stack("prod"))
    sharding = Sharding(engine)
    assert sharding.find(key("b", "prod")) == Stack("prod", 1)
    assert sharding.assign_stack(key("a", "prod")) == Stack("prod"), "rebuilding it from the live objects"
