"""Which backends are read directly, and how the connection is made: the URL, the environment, secure defaults."""

from __future__ import annotations

import pytest

from automation.engine.state_table import CONNECT_TIMEOUT_S, StateTable
from automation.engine.state_url import StateUrl

URL = "postgres://me@db.example:5432/states"


def made(url: str) -> StateTable:
    found = StateTable.of_url(StateUrl.of(url))
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGCONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", ["file:///tmp/x", "s3://bucket", f"{URL}?table=x;drop", f"{URL}?table=a.b.c"])
def test_other_backends_and_odd_tables_are_left_to_the_cli(url: str) -> None:
    assert StateTable.of_url(StateUrl.of(url)) is None


def test_the_tables_name_is_not_sent_to_the_server_and_other_options_are() -> None:
    table = made(f"{URL}?table=team.states&sslmode=verify-full&sslrootcert=%2Fca.pem")
    assert table._table == "team.states"
    assert table._target == f"{URL}?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert "sslmode" not in table._options


def test_a_password_in_the_url_stays_out_of_the_target() -> None:
    table = made("postgres://me:s3cret@db.example/states?sslpassword=other")
    assert "s3cret" not in table._target + repr(table)
    assert (table._options["password"], table._options["sslpassword"]) == ("s3cret", "other")


def test_tls_is_required_and_a_connection_is_not_awaited_for_minutes_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = made(URL)._options
    assert (options["sslmode"], options["connect_timeout"]) == ("require", CONNECT_TIMEOUT_S)
    assert made(f"{URL}?sslmode=disable&connect_timeout=3")._options.keys() == {"application_name"}
    monkeypatch.setenv("PGSSLMODE", "verify-ca")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "5")
    assert made(URL)._options.keys() == {"application_name"}
