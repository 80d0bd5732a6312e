"""Access of this host to a source: the address of a plan's file, and the credentials of the request.

Called by `download`, `repository` and `remote`; `automation.models` makes `Credentials` from a Secret. An agent uses
only the credentials of its host: plans contain none, because anyone who may write services can write plans. A token for
Hugging Face is sent only to Hugging Face or to the endpoint that the host's owner set by HF_ENDPOINT. S3 keys sign
requests to AWS_ENDPOINT_URL or to AWS. The signature is AWS Signature Version 4, as the S3 API reference defines it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote

from agent.sources.errors import PlanInvalid, StoreFailed
from agent.sources.sigv4 import SigV4Signer, domain_of
from program.desired.hub import Hub
from program.desired.web_address import AddressInvalid, WebAddress, shown

DEFAULT_REGION = "us-east-1"


class Signer(Protocol):
    """Returns the headers with the credentials for a GET of `address`."""

    def headers(self, address: WebAddress) -> dict[str, str]: ...


@dataclass(frozen=True)
class Credentials:
    """The credentials for sources in a Secret or environment.

    Every field may be empty. The repr contains no secrets.
    """

    hub_token: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    endpoint: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Credentials:
        """Read the variables of a downloader's environment. White space at both ends is removed."""

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
        """Return the signer for a web address.

        `hub`: the address belongs to Hugging Face or its configured replacement.
        """
        token = (self.hub_token or self.token) if hub else self.token
        return BearerToken(token) if token else None

    def for_s3(self) -> Signer | None:
        """Return the signer for S3 requests. Without keys it is None, and requests are anonymous."""
        if not self.access_key_id or not self.secret_access_key:
            return None
        return S3Signer(self.access_key_id, self.secret_access_key, self.session_token, self.region or DEFAULT_REGION)

    def s3_address(self, bucket: str, key: str) -> WebAddress:
        """Return the path-style address of an object on the endpoint, which every S3-compatible store supports.

        Raises AddressInvalid if the endpoint is not a valid address, or if no request can contain the key.
        """
        region = self.region or DEFAULT_REGION
        endpoint = self.endpoint or f"https://s3.{region}.{domain_of(region)}"
        base = WebAddress.parse(endpoint.rstrip("/"))
        if base.query:
            raise AddressInvalid("has a query; write the address without it")
        return WebAddress.parse(f"{base.sent.rstrip('/')}/{quote(bucket, safe='')}/{quote(key, safe='/-_.~')}")


@dataclass(frozen=True)
class BearerToken:
    """Sends a token (RFC 6750). A token that is not one printable word is not sent."""

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
        """Sign host, date and the empty body. Other headers, such as Range, are not signed."""
        keys = (self.access_key_id, self.secret_access_key, self.session_token)
        return SigV4Signer(*keys, self.region, "s3", self.clock).headers("GET", address.authority, address.target)


_NAMES = (
    "HF_TOKEN",
    "HF_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
)


class SourceRequest(NamedTuple):
    """The address of a remote file and the signer of its request."""

    url: WebAddress
    signer: Signer | None


@dataclass(frozen=True)
class SourceAccess:
    """The credentials and the hub endpoint of a host."""

    credentials: Credentials = field(default_factory=Credentials)
    hub: Hub = field(default_factory=Hub)

    @classmethod
    def of_host(cls, path: Path | None, environment: Mapping[str, str] | None = None) -> SourceAccess:
        """Read the host's current credentials. Variables at `path` override those of the agent's environment.

        `path` is a directory with one file per variable, like a mounted Secret, or a file of `NAME=VALUE` lines. Raises
        StoreFailed if it cannot be read, or if an endpoint is not a valid address.
        """
        values = {name: value for name, value in (environment or os.environ).items() if name in _NAMES}
        if path is not None:
            values.update(_read(path))
        try:
            hub = Hub.at(values.get("HF_ENDPOINT", ""))
        except AddressInvalid as error:
            raise StoreFailed(f"HF_ENDPOINT {error}; correct it in the credentials of this host") from None
        credentials = Credentials.of(values)
        try:
            credentials.s3_address("bucket", "key")
        except AddressInvalid as error:
            raise StoreFailed(f"AWS_ENDPOINT_URL {error}; correct it in the credentials of this host") from None
        return cls(credentials, hub)

    def request_for(self, source: str) -> SourceRequest:
        """Return the request for a plan's file that is neither local nor a whole repository. Raises PlanInvalid."""
        scheme, _, rest = source.partition("://")
        if scheme.lower() == "s3":
            bucket, _, key = rest.partition("/")
            if not re.fullmatch(r"[\w.-]+", bucket, re.ASCII) or not key:
                raise PlanInvalid(f"`{shown(source)[:80]}` does not name an object; write `s3://bucket/key`")
            try:
                return SourceRequest(self.credentials.s3_address(bucket, key), self.credentials.for_s3())
            except AddressInvalid as error:
                raise PlanInvalid(f"`{shown(source)[:80]}` {error}") from None
        if scheme.lower() not in ("http", "https"):
            raise PlanInvalid(
                f"`{shown(source)[:80]}` is neither an http(s), s3 or `file://` URL, nor an absolute path, nor a "
                f"repository `hf://org/name`"
            )
        return self.web_request(source)

    def web_request(self, url: str) -> SourceRequest:
        """Return the request for a URL. The Hub's token is added only for addresses of the Hub. Raises PlanInvalid."""
        try:
            address = self.hub.location(WebAddress.parse(url))
        except AddressInvalid as error:
            raise PlanInvalid(f"`{shown(url)[:80]}` {error}") from None
        token = Credentials(hub_token=self.credentials.hub_token).for_web(hub=True)
        return SourceRequest(address, token if self.hub.may_have_token(address) else None)


def _read(path: Path) -> dict[str, str]:
    try:
        if path.is_dir():
            return {name: (path / name).read_text().strip() for name in _NAMES if (path / name).is_file()}
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreFailed(f"the credentials at `{path}` cannot be read: {error}") from None
    pairs = (line.removeprefix("export ").partition("=") for line in map(str.strip, lines) if not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs if name.strip() in _NAMES}
