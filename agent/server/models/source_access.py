"""How this host gets at a source: the address of a plan's file, and the proof that this host may read it.

Called by `download` and `repository`. The credentials are the host's own: plans come from
whoever may write services, and carry none. A token for Hugging Face goes to Hugging Face, or to what the host's owner
set in its place by HF_ENDPOINT; S3 keys sign requests to AWS_ENDPOINT_URL or to AWS. Neither goes anywhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.server.errors import PlanInvalid, StoreFailed
from agent.server.models.credentials import Credentials, Signer

HUB = "https://huggingface.co"
_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
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


class Place(NamedTuple):
    """One remote file, and who asks for it."""

    url: str
    signer: Signer | None


@dataclass(frozen=True)
class SourceAccess:
    """What a host knows that lets it fetch."""

    credentials: Credentials = field(default_factory=Credentials)
    hub: str = HUB

    @classmethod
    def of_host(cls, path: Path | None, environment: Mapping[str, str] | None = None) -> SourceAccess:
        """Read the host's credentials anew: those at `path`, else those of the agent's environment.

        `path` is a directory with a file for each variable, as a mounted Secret is, or a file of `NAME=VALUE` lines.
        Raises StoreFailed when it cannot be read.
        """
        values = {name: value for name, value in (environment or os.environ).items() if name in _NAMES}
        if path is not None:
            values.update(_read(path))
        return cls(Credentials.of(values), values.get("HF_ENDPOINT", "").strip().rstrip("/") or HUB)

    def place(self, source: str) -> Place:
        """Find the file of a plan that is neither local nor a whole repository. Raises PlanInvalid."""
        scheme, _, rest = source.partition("://")
        if scheme.lower() == "s3":
            bucket, _, key = rest.partition("/")
            if not bucket or not key:
                raise PlanInvalid(f"`{source}` names no object; write `s3://bucket/key`")
            return Place(self.credentials.s3_url(bucket, key), self.credentials.for_s3())
        if scheme.lower() not in ("http", "https"):
            raise PlanInvalid(
                f"`{source[:80]}` is no http(s), s3 or `file://` URL, no absolute path, no repository `hf://org/name`"
            )
        return self.hub_place(source)

    def hub_place(self, url: str) -> Place:
        """Find a file behind a URL, which is one of the Hub's or of anybody's."""
        try:
            parts = urlsplit(url)
            is_hub = parts.scheme.lower() == "https" and parts.hostname in _HUB_HOSTS
        except ValueError:
            return Place(url, None)
        if is_hub and self.hub != HUB:
            url = f"{self.hub}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        at_stand_in = self.hub != HUB and _origin(url) == _origin(self.hub)
        token = Credentials(hub_token=self.credentials.hub_token).for_web(hub=True)
        return Place(url, token if is_hub or at_stand_in else None)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _read(path: Path) -> dict[str, str]:
    try:
        if path.is_dir():
            return {name: (path / name).read_text().strip() for name in _NAMES if (path / name).is_file()}
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreFailed(f"the credentials at `{path}` cannot be read: {error}") from None
    pairs = (line.removeprefix("export ").partition("=") for line in map(str.strip, lines) if not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs if name.strip() in _NAMES}
