"""Reads the address on which a gateway listens. Imports little, so that commands can check it before they start one."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from gateway.clients.listener_tls import refusal


class ListenAddress(NamedTuple):
    """An IP address with a port."""

    address: str
    port: int

    @classmethod
    def read(cls, text: str, *, tls: bool = False, keys: bool = False) -> ListenAddress:
        """Read the address of a listener for clients. Raises ValueError, whose text says what is wrong and what to do.

        `tls` and `keys`: clients reach the gateway by TLS, and must show keys.
        """
        made = cls.parse(text)
        if why := refusal(made.address, tls=tls, keys=keys):
            raise ValueError(why)
        return made

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read `127.0.0.1:8080` or `[::1]:8080`. Raises ValueError, whose text says what is wrong."""
        host, _, port = text.rpartition(":")
        try:
            address, number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(port)
            if not 0 <= number <= 65535:
                raise ValueError(number)
        except ValueError:
            raise ValueError(f"`{text}` is not an IP address with a port, as in 127.0.0.1:8080") from None
        return cls(str(address), number)

    def url(self, *, tls: bool = False) -> str:
        """Return the base URL for clients of OpenAI's API."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if tls else 'http'}://{host}:{self.port}/v1"
