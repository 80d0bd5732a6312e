"""The identity that a kubeconfig asks the API server to act as: `as`, `as-uid`, `as-groups` and `as-user-extra`.

Made by `kubeapi.config`; `kubeapi.rest` sends its headers with every request.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from kubeapi.errors import ConfigInvalid

Headers = tuple[tuple[str, str], ...]

_IN_NAMES = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""Characters that a header's name may hold. `%` is one of them, and is escaped, since it begins an escape."""


def impersonation_headers(user: Mapping[str, Any]) -> Headers:
    """Give the headers by which the API server acts as another user; none where the kubeconfig's user names nobody.

    Raises ConfigInvalid where a uid, groups or extra values are given without a user, and for text that no header may
    hold.
    """
    name, uid = user.get("as") or "", user.get("as-uid") or ""
    groups, extra = user.get("as-groups") or (), user.get("as-user-extra") or {}
    if not name:
        if uid or groups or extra:
            raise ConfigInvalid("`as-uid`, `as-groups` and `as-user-extra` need a user to act as; name it in `as`")
        return ()
    if not isinstance(groups, list | tuple) or not isinstance(extra, dict):
        raise ConfigInvalid("`as-groups` is a list, and `as-user-extra` is a map of lists")
    headers = [("Impersonate-User", name)]
    if uid:
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        if not isinstance(values, list | tuple):
            raise ConfigInvalid(f"`as-user-extra` has no list of values for `{key}`")
        headers += [(f"Impersonate-Extra-{_escaped(str(key))}", value) for value in values]
    return tuple((header, _checked(header, value)) for header, value in headers)


def _escaped(key: str) -> str:
    """Write a key as part of a header's name: in lower case, with each byte that may not stand there as %XX."""
    return "".join(
        chr(byte) if chr(byte) in _IN_NAMES else f"%{byte:02X}" for byte in key.lower().encode("utf-8", "strict")
    )


def _checked(header: str, value: object) -> str:
    text = str(value)
    if not text.isprintable() or text != text.strip():
        raise ConfigInvalid(f"the value of {header} holds a character that no header may hold")
    # A header carries bytes; those of UTF-8 are what the API server reads.
    return text.encode().decode("latin-1")
