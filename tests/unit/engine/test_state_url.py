"""Backend URLs: the URL for the CLI, the URL that is shown, and that neither contains a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.engine.state_url import StateUrl


@pytest.mark.parametrize(
    ("given", "text", "shown", "secrets"),
    [
        ("s3://bucket/path?region=eu", "s3://bucket/path?region=eu", "s3://bucket/path", {}),
        (
            "postgres://u@h:5432/db?sslmode=disable",
            "postgres://u@h:5432/db?sslmode=disable",
            "postgres://u@h:5432/db",
            {},
        ),
        ("postgres://u:p%40ss@h/db", "postgres://u@h/db", "postgres://u@h/db", {"PGPASSWORD": "p@ss"}),
        ("postgres://u@h/db?password=a+b&x=1", "postgres://u@h/db?x=1", "postgres://u@h/db", {"PGPASSWORD": "a b"}),
        ("file:///var/state", "file:///var/state", "file:///var/state", {}),
    ],
)
def test_a_password_is_taken_out_of_a_url(given: str, text: str, shown: str, secrets: dict[str, str]) -> None:
    url = StateUrl.of(given)
    assert (url.text, url.shown, dict(url.environment)) == (text, shown, secrets)
    assert url.has_secret is bool(secrets)
    assert all(secret not in repr(url) for secret in secrets.values())


def test_a_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StateUrl.of("file://~/a b").path == tmp_path / "a b"
    assert StateUrl.of("file://~/a b").text == f"file://{tmp_path}/a%20b"
    assert StateUrl.of("s3://bucket").path is None


@pytest.mark.parametrize(
    "given", ["/var/state", "http://h/x", "mysql://u:swordfish@h/db", "postgres://u:sword[fish@h/db"]
)
def test_what_makes_no_sense_is_refused_without_being_repeated(given: str) -> None:
    with pytest.raises(ValueError, match="state") as caught:
        StateUrl.of(given)
    assert "fish" not in str(caught.value)
