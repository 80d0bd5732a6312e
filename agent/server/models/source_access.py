"""How this host gets at a source: the address of a plan's file, and the proof that this host may read it.

Called by `download` and `repository`. The credentials are the host's own: plans come from
whoever may write services, and carry none. A token for Hugging Face goes to Hugging Face, or to what the host's owner
set in its place by HF_ENDPOINT; S3 keys sign requests to AWS_ENDPOINT_URL or to AWS. Neither goes anywhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agent.server.models.credentials import Credentials, Signer
from agent.sources.errors import PlanInvalid, StoreFailed
from program.desired.hub import Hub
from program.desired.web_address import AddressInvalid, WebAddress, shown

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
    """One remote file, and who asks for it."""

    url: WebAddress
    signer: Signer | None


@dataclass(frozen=True)
class SourceAccess:
    """What a host knows that lets it fetch."""

    credentials: Credentials = field(default_factory=Credentials)
    hub: Hub = field(default_factory=Hub)

    @classmethod
    def of_host(cls, path: Path | None, environment: Mapping[str, str] | None = None) -> SourceAccess:
        """Read the host's credentials anew: those at `path`, else those of the agent's environment.

        `path` is a directory with a file for each variable, as a mounted Secret is, or a file of `NAME=VALUE` lines.
        Raises StoreFailed when it cannot be read, or names an endpoint that is no address.
        """
        values = {name: value for name, value in (environment or os.environ).items() if name in _NAMES}
        if path is not None:
            values.update(_read(path))
        try:
            hub = Hub.at(values.get("HF_ENDPOINT", ""))
        except AddressInvalid as error:
            raise StoreFailed(f"HF_ENDPOINT {error}; mend it in the credentials of this host") from None
        credentials = Credentials.of(values)
        try:
            credentials.s3_address("bucket", "key")
        except AddressInvalid as error:
            raise StoreFailed(f"AWS_ENDPOINT_URL {error}; mend it in the credentials of this host") from None
        return cls(credentials, hub)

    def request_for(self, source: str) -> SourceRequest:
        """Find the file of a plan that is neither local nor a whole repository. Raises PlanInvalid."""
        scheme, _, rest = source.partition("://")
        if scheme.lower() == "s3":
            bucket, _, key = rest.partition("/")
            if not re.fullmatch(r"[\w.-]+", bucket, re.ASCII) or not key:
                raise PlanInvalid(f"`{shown(source)[:80]}` names no object; write `s3://bucket/key`")
            try:
                return SourceRequest(self.credentials.s3_address(bucket, key), self.credentials.for_s3())
            except AddressInvalid as error:
                raise PlanInvalid(f"`{shown(source)[:80]}` {error}") from None
        if scheme.lower() not in ("http", "https"):
            raise PlanInvalid(
                f"`{shown(source)[:80]}` is no http(s), s3 or `file://` URL, no absolute path, no repository "
                "`hf://org/name`"
            )
        return self.web_request(source)

    def web_request(self, url: str) -> SourceRequest:
        """Find a file behind a URL, which is one of the Hub's or of anybody's. Raises PlanInvalid."""
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
