"""Addresses and token of Hugging Face, or of a mirror that an operator or a host's owner configures. Pure.

The dialects and the loop's source probe of Models use it, and the agent for the files of its plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from program.desired.web_address import AddressInvalid, WebAddress

HUB = "https://huggingface.co"
HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})


@dataclass(frozen=True)
class Hub:
    """The server of the Hub's files."""

    url: str = HUB
    """Without a slash at the end."""

    @classmethod
    def at(cls, url: str) -> Hub:
        """Read the address of a mirror; empty means Hugging Face itself. Raises AddressInvalid."""
        text = url.strip().rstrip("/") or HUB
        address = WebAddress.parse(text)
        if "?" in text or "#" in text:
            raise AddressInvalid("has a query or a fragment; write the hub's base URL without them")
        return cls(HUB if address.origin == ("https", "huggingface.co", 443) and address.path == "/" else text)

    @property
    def base(self) -> WebAddress:
        """The mirror's address. Raises AddressInvalid if `url` was not read by `at`."""
        return WebAddress.parse(self.url)

    @property
    def is_mirror(self) -> bool:
        return self.url != HUB

    def location(self, address: WebAddress) -> WebAddress:
        """Return the mirror's address of a file of Hugging Face; other addresses are returned unchanged."""
        if not self.is_mirror or address.host not in HUB_HOSTS:
            return address
        return WebAddress.parse(f"{self.url}{address.path}" + (f"?{address.query}" if address.query else ""))

    def may_have_token(self, address: WebAddress) -> bool:
        """Return whether a token for Hugging Face may be sent to `address`: the Hub by HTTPS on port 443, or its
        mirror.
        """
        if address.host in HUB_HOSTS:
            return (address.scheme, address.effective_port) == ("https", 443)
        return self.is_mirror and address.origin == self.base.origin
