"""The URL of a state backend, without its password. Pure; used wherever such a URL is passed on or shown.

A URL appears in errors, also of the CLI, in logs and in support tickets; a password must not. The CLI gets the password
in PGPASSWORD, which is also the better way to pass it to Herdsman.
"""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMES = ("file", "s3", "gs", "azblob", "postgres")
_SECRET_PARAMETERS = ("password", "sslpassword")
_PG_ENVIRONMENT = {"password": "PGPASSWORD", "sslpassword": "PGSSLPASSWORD"}


@dataclass(frozen=True)
class StateUrl:
    """A backend URL that may be shown."""

    text: str
    """The URL for the CLI: without a password, and with an absolute path for file://."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The secrets from the URL, as the environment variables that the CLI reads."""

    @staticmethod
    def of(url: str) -> StateUrl:
        """Parse a URL. Raises ValueError; its message contains no secret."""
        scheme, found, rest = url.partition("://")
        if not found:
            raise ValueError("the state must be a URL; for a directory write file:///path")
        if scheme not in SCHEMES:
            raise ValueError(
                f"a state backend is one of {', '.join(f'{name}://' for name in SCHEMES)}, not {scheme}://"
            )
        if scheme == "file":
            path = pathlib.Path(urllib.parse.unquote(rest.partition("?")[0])).expanduser().absolute()
            return StateUrl(f"file://{urllib.parse.quote(str(path))}")
        try:
            parts = urllib.parse.urlsplit(url)
            password = parts.password
        except ValueError:
            raise ValueError(
                "the state's URL is invalid; percent-encode its password, or better omit the password"
            ) from None
        taken = {"PGPASSWORD": urllib.parse.unquote(password)} if password else {}
        kept = []
        for pair in parts.query.split("&") if parts.query else []:
            name, _, value = pair.partition("=")
            if name in _SECRET_PARAMETERS:
                taken[_PG_ENVIRONMENT[name]] = urllib.parse.unquote_plus(value)
            else:
                kept.append(pair)
        user, at, host = parts.netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}{at}{host}"
        return StateUrl(urllib.parse.urlunsplit(parts._replace(netloc=netloc, query="&".join(kept))), taken)

    @property
    def shown(self) -> str:
        """The URL for messages, without its query, which has options of the connection only."""
        return self.text.partition("?")[0]

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0]

    @property
    def path(self) -> pathlib.Path | None:
        """The directory of a file:// URL; None for any other."""
        if self.scheme != "file":
            return None
        return pathlib.Path(urllib.parse.unquote(self.text.removeprefix("file://")))

    @property
    def has_secret(self) -> bool:
        """Whether the URL contained a password."""
        return bool(self.environment)
