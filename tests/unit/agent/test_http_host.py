"""The addresses to which a client of the agent's API sends its token."""

from __future__ import annotations

import pytest

from agent.client.http import HttpHost
from agent.client.port import HostRefused


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://agent.example\\@127.0.0.1:8443",
        "http://127.0.0.1\\@agent.example:8443",
        "http://me:secret@127.0.0.1:8443",
        "https://agent.example\\.example:8443",
        "https://agent.example:0",
        "http://agent.example:8443",
        "ftp://127.0.0.1",
        "agent.example",
    ],
)
def test_a_token_goes_to_no_address_that_others_read_or_that_is_read_differently(endpoint: str) -> None:
    with pytest.raises(HostRefused, match="https://") as caught:
        HttpHost(endpoint, lambda: "t0ken")
    assert caught.value.reason == "NotPrivate"
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:8443", "http://[::1]:1/", "https://agent.example", "http://localhost"]
)
def test_it_goes_over_tls_or_stays_on_the_machine(endpoint: str) -> None:
    HttpHost(endpoint, lambda: "t0ken").close()
