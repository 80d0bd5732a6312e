"""When a host's token is renewed, how a new one is written, and which kubeconfigs count as those of `host join`."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from agent.server.joining.identity import identity_of, kubeconfig_text
from agent.server.joining.renewal import LOOK_S, TokenRenewal, wait_s
from agent.server.joining.token import Claims, TokenWrong, claims_of
from kubeapi.errors import NotFound, Unauthorized, Unreachable

DAY = 86400.0


def token(issued: float, life: float, subject: str = "system:serviceaccount:herdsman-system:mac-1") -> str:
    body = json.dumps({"sub": subject, "iat": issued, "exp": issued + life}).encode()
    return f"e30.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.c2ln"


class Server:
    """Answers the requests of a renewal."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked = 0

    def request(self, method: str, path: str, *, body: Any) -> Any:
        assert (method, path) == ("POST", "/api/v1/namespaces/herdsman-system/serviceaccounts/mac-1/token")
        assert body["spec"]["expirationSeconds"] == 30 * DAY
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"status": {"token": self.answer, "expirationTimestamp": "2030-01-01T00:00:00Z"}}

    def delete(self, *_: Any) -> None:
        raise NotFound(404, "NotFound", "gone")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kubeconfig").write_text(kubeconfig_text("https://10.0.0.1:6443", "mac-1"))
    (tmp_path / "token").write_text(token(0, 30 * DAY))
    return tmp_path


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def parts(folder: Path) -> tuple[Server, Clock, TokenRenewal]:
    server, clock, found = Server(), Clock(), identity_of(folder / "kubeconfig")
    assert found is not None
    renewal = TokenRenewal(server, found, namespace="herdsman-system", clock=clock)  # type: ignore[arg-type]
    return server, clock, renewal


def test_a_token_is_renewed_after_a_third_of_its_life(folder: Path, parts: tuple[Server, Clock, TokenRenewal]) -> None:
    server, clock, renewal = parts
    clock.now = 10 * DAY - 1
    assert renewal.look() == 1.0 and server.asked == 0
    clock.now = 10 * DAY
    server.answer = token(clock.now, 30 * DAY)
    assert renewal.look() == LOOK_S and server.asked == 1
    assert (folder / "token").read_text() == server.answer
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert sorted(each.name for each in folder.iterdir()) == ["kubeconfig", "token"]


def test_a_machine_that_slept_renews_at_its_next_look(parts: tuple[Server, Clock, TokenRenewal]) -> None:
    server, clock, renewal = parts
    assert renewal.look() == LOOK_S
    clock.now = 29 * DAY
    server.answer = token(clock.now, 30 * DAY)
    renewal.look()
    assert server.asked == 1


@pytest.mark.parametrize(
    "answer", [Unreachable("no answer"), Unauthorized(401, "Unauthorized", "revoked"), "x.y", token(0, DAY, "other")]
)
def test_a_failure_keeps_the_old_token(answer: Any, folder: Path, parts: tuple[Server, Clock, TokenRenewal]) -> None:
    server, clock, renewal = parts
    before, clock.now, server.answer = (folder / "token").read_text(), 20 * DAY, answer
    assert renewal.look() == 30.0
    assert renewal.look() == 60.0
    assert (folder / "token").read_text() == before


def test_a_link_in_place_of_the_token_is_neither_read_nor_written(
    folder: Path, parts: tuple[Server, Clock, TokenRenewal], tmp_path_factory: pytest.TempPathFactory
) -> None:
    server, clock, renewal = parts
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_text(token(0, DAY))
    (folder / "token").unlink()
    (folder / "token").symlink_to(elsewhere)
    clock.now, server.answer = DAY, token(DAY, DAY)
    renewal.look()
    assert server.asked == 0 and elsewhere.read_text() == token(0, DAY)


def test_waits_after_failures_leave_time_for_more_tries() -> None:
    claims = Claims("s", 0.0, 30 * DAY)
    assert [wait_s(claims, 20 * DAY, failures) for failures in (1, 2, 3, 9, 10_000)] == [30, 60, 120, 3600, 3600]
    assert wait_s(claims, 30 * DAY - 400, 9) == 100.0
    assert wait_s(claims, 30 * DAY - 1, 9) == 1.0
    assert wait_s(claims, 31 * DAY, 9) == 3600
    assert wait_s(None, 0.0, 1) == 30.0
    for left in (10.0, 1000.0, 10 * DAY):
        assert wait_s(claims, 30 * DAY - left, 5) <= left / 4


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "a.!.c", f"a.{'x' * 20_000}.c", token(5, -1), token(-5, 9)])
def test_texts_that_are_no_tokens(text: str) -> None:
    with pytest.raises(TokenWrong):
        claims_of(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"tokenFile": "token"', '"exec": {"command": "/bin/sh"}'),
        ('"tokenFile": "token"', '"tokenFile": "/etc/shadow"'),
        ("https://10.0.0.1:6443", "http://10.0.0.1:6443"),
        ('"kind": "Config"', '"kind": "Config", "proxy-url": "http://x"'),
        ('"certificate-authority": "ca.crt"', '"insecure-skip-tls-verify": true'),
        ("mac-1", "../x"),
        ("{", "["),
    ],
)
def test_another_kubeconfig_has_no_identity_to_renew(folder: Path, old: str, new: str) -> None:
    file = folder / "kubeconfig"
    assert identity_of(file) is not None
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert identity_of(file) is None


def test_a_link_or_a_device_is_no_kubeconfig(folder: Path) -> None:
    (folder / "linked").symlink_to(folder / "kubeconfig")
    assert identity_of(folder / "linked") is None
    assert identity_of(folder) is None
    assert identity_of(Path("/dev/zero")) is None
    assert identity_of(folder / "missing") is None
