"""The URL of a state backend, with its password taken out. Pure; used wherever such a URL is passed on or shown.

A URL is printed in errors, also by the CLI itself, and stands in logs and support tickets; a password must not. It goes
to the CLI as PGPASSWORD instead, the way it should have come.
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
    """What the CLI gets: without a password, and absolute where it is a path."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What was taken out of it, as the variables that the CLI reads."""

    @staticmethod
    def of(url: str) -> StateUrl:
        """Take a URL apart. Raises ValueError, whose message holds nothing secret."""
        scheme, found, rest = url.partition("://")
        if not found:
            raise ValueError("the state is given as a URL; for a directory write file:///path")
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
                "the state's URL makes no sense; a password in it must be quoted, or better left out"
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
        """For people: without a query, which says how and not where."""
        return self.text.partition("?")[0]

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0]

    @property
    def path(self) -> pathlib.Path | None:
        """The directory of a file:// URL."""
        if self.scheme != "file":
            return None
        return pathlib.Path(urllib.parse.unquote(self.text.removeprefix("file://")))

    @property
    def has_secret(self) -> bool:
        """Whether a password stood in it."""
        return bool(self.environment)
