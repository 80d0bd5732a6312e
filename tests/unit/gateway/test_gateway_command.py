"""The options of `herdsman gateway`."""

from __future__ import annotations

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
