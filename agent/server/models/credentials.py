"""Prove to a source who asks: a bearer token, or the signature of an S3 request. Pure.

Made by `automation.models` out of a Secret; `agent.server.models.remote` asks for the headers of each request, and
never for a request that goes to another server than the one that was meant. The signature is AWS Signature Version 4,
as "Authenticating Requests (AWS Signature Version 4)" of the S3 API reference defines it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import quote

from program.desired.web_address import AddressInvalid, WebAddress

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"
DEFAULT_REGION = "us-east-1"


class Signer(Protocol):
    """Gives the headers that prove a GET of `address`."""

    def headers(self, address: WebAddress) -> dict[str, str]: ...


@dataclass(frozen=True)
class Credentials:
    """What a Secret says about a source; every field may be empty. Its text shows none of the secrets."""

    hub_token: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Credentials:
        """Read the environment that a downloader would get; line breaks at the ends are cut off, as shells do."""

        def value(*names: str) -> str:
            return next((found for name in names if (found := values.get(name, "").strip())), "")

        return cls(
            hub_token=value("HF_TOKEN"),
            token=value("SOURCE_TOKEN"),
            access_key_id=value("AWS_ACCESS_KEY_ID"),
            secret_access_key=value("AWS_SECRET_ACCESS_KEY"),
            session_token=value("AWS_SESSION_TOKEN"),
            region=value("AWS_REGION", "AWS_DEFAULT_REGION"),
            endpoint=value("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
        )

    def for_web(self, *, hub: bool) -> Signer | None:
        """Give the signer of a web address, `hub` for one of Hugging Face or of what stands in for it."""
        token = (self.hub_token or self.token) if hub else self.token
        return BearerToken(token) if token else None

    def for_s3(self) -> Signer | None:
        """Give the signer of S3 requests; None without keys, which asks as anybody."""
        if not self.access_key_id or not self.secret_access_key:
            return None
        return S3Signer(self.access_key_id, self.secret_access_key, self.session_token, self.region or DEFAULT_REGION)

    def s3_address(self, bucket: str, key: str) -> WebAddress:
        """Name an object by its path on the endpoint, which every S3-compatible store understands.

        Raises AddressInvalid where the endpoint is no address, or the key one that no request can name.
        """
        endpoint = self.endpoint or f"https://s3.{self.region or DEFAULT_REGION}.amazonaws.com"
        base = WebAddress.parse(endpoint.rstrip("/"))
        if base.query:
            raise AddressInvalid("has a query; write the address below which the buckets lie")
        return WebAddress.parse(f"{base.sent.rstrip('/')}/{quote(bucket, safe='')}/{quote(key, safe='/-_.~')}")


@dataclass(frozen=True)
class BearerToken:
    """Sends a token (RFC 6750). One that is no single printable word is not sent at all."""

    token: str = field(repr=False)

    def headers(self, address: WebAddress) -> dict[str, str]:  # noqa: ARG002 - the same for every address
        return {"Authorization": f"Bearer {self.token}"} if re.fullmatch(r"[!-~]+", self.token) else {}


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class S3Signer:
    """Signs a GET of an object."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    region: str
    clock: Callable[[], datetime] = _now

    def headers(self, address: WebAddress) -> dict[str, str]:
        """Sign host, date and the empty body; other headers, such as Range, may be added freely."""
        path, _, query = address.target.partition("?")
        now = self.clock()
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        signed = {"host": address.authority, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
        if self.session_token:
            signed["x-amz-security-token"] = self.session_token
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        request = f"GET\n{path}\n{_sorted_query(query)}\n{lines}\n{names}\n{_EMPTY_SHA256}"
        scope = f"{day}/{self.region}/s3/aws4_request"
        to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self.secret_access_key}".encode()
        for word in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        credential = f"{self.access_key_id}/{scope}"
        sent = {name: value for name, value in signed.items() if name != "host"}
        return {
            **sent,
            "Authorization": f"{_ALGORITHM} Credential={credential},SignedHeaders={names},Signature={signature}",
        }


def _sorted_query(query: str) -> str:
    pairs = [part if "=" in part else f"{part}=" for part in query.split("&") if part]
    return "&".join(sorted(pairs))
