"""At which port an engine's container listens, and whether it wants TLS, read off the container of a Pod. Pure.

Called by `engine_start` for pods that a custom resource describes, whose ports need no particular name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kubeapi.json_types import Json

_PROBES = ("readinessProbe", "startupProbe", "livenessProbe")
_PORT = re.compile(r"(?:^|\s)--port(?:=|\s+)(\d{1,5})(?!\d)")
_CERTIFICATE = re.compile(r"--ssl-(?:certfile|cert-file)\b")


def address_of(container: Json, http_port: str) -> tuple[int, bool]:
    """Return port and whether the server wants TLS; port 0 where the container names none.

    The port is the one named `http_port`, else that of `--port`, of a probe, else the first one.
    """
    port = _named_port(container, http_port) or _argument(container) or _probed(container) or _first(container)
    schemes = [str(get.get("scheme") or "HTTP") for get in _gets(container) if _number(container, get) == port]
    if schemes:
        return port, schemes[0] == "HTTPS"
    return port, bool(_CERTIFICATE.search(_text(container)))


def _named_port(container: Json, name: str) -> int:
    ports = (each for each in container.get("ports") or () if each.get("name") == name)
    return int(next((each["containerPort"] for each in ports), 0))


def _argument(container: Json) -> int:
    """Read `--port`, also of a shell's script; words behind a script are arguments of it, and the last one holds."""
    found = _PORT.findall(_text(container))
    return int(found[-1]) if found else 0


def _probed(container: Json) -> int:
    return next((port for get in _gets(container) if (port := _number(container, get))), 0)


def _first(container: Json) -> int:
    return int(next((each.get("containerPort") or 0 for each in container.get("ports") or ()), 0))


def _gets(container: Json) -> Iterator[Json]:
    for name in _PROBES:
        get = (container.get(name) or {}).get("httpGet")
        if get:
            yield get


def _number(container: Json, get: Json) -> int:
    port = get.get("port")
    return port if isinstance(port, int) else _named_port(container, str(port))


def _text(container: Json) -> str:
    return " ".join(str(word) for part in ("command", "args") for word in container.get(part) or ())
