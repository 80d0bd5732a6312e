"""The options of `herdsman gateway`."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.cli.main import EXIT_USAGE, invoke


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("0.0.0.0:8080", "is not a loopback address"),
        ("[2001:db8::1]:8080", "is not a loopback address"),
        ("localhost:8080", "is not an IP address with a port"),
        ("127.0.0.1", "is not an IP address with a port"),
        ("127.0.0.1:99999", "is not an IP address with a port"),
    ],
)
def test_an_address_that_it_cannot_use_is_refused(listen: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["gateway", "--listen", listen]) == EXIT_USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--tls-cert", "tls.crt"), "--tls-cert and --tls-key belong together"),
        (("--listen", "0.0.0.0:8080"), "needs a certificate"),
        (("--cors-origin", "chat.example.org"), "is not an origin"),
    ],
)
def test_options_that_it_cannot_use_are_refused(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["gateway", *options]) == EXIT_USAGE
    assert says in capsys.readouterr().err


def test_a_certificate_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key"))
    assert invoke(["gateway", *files]) == 1
    assert "tls.crt" in capsys.readouterr().err
