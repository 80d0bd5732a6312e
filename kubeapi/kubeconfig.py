"""Reads one kubeconfig, or several that are merged: server, trust, credentials. Called by `kubeapi.config`.

It reads certificates, tokens, token files and passwords as client-go does. From the package `kubernetes` it uses exec
plugins and auth providers (`kubeapi.plugin_credentials`), but not the loader; ADR 49 has the reasons.
"""

from __future__ import annotations

import base64
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from kubeapi import yaml_text
from kubeapi.endpoint import ClientCertificate, Endpoint, TokenFile, impersonation_headers
from kubeapi.errors import ConfigInvalid
from kubeapi.plugin_credentials import ExecCredentials, provider_authorization

_DIRECTORY = object()
"""Key of the directory of an entry's file, to which the paths in the entry are relative."""


def read_kubeconfigs(files: list[pathlib.Path], context: str | None) -> Endpoint:
    """Read kubeconfigs as one. Of entries with one name, and of current contexts, the first counts.

    Exec plugins are run. Raises ConfigInvalid.
    """
    try:
        config = _merged(files)
        chosen = context or config["current-context"]
        pair = _named(config, "contexts", chosen)["context"]
        entry = _named(config, "clusters", pair["cluster"])
        cluster, beside = entry["cluster"], entry[_DIRECTORY]
        named = _named(config, "users", pair["user"]) if pair.get("user") else {}
        user, beside_user = named.get("user") or {}, named.get(_DIRECTORY)
        acting = impersonation_headers(user)

        def at(value: str | None) -> str | None:
            return str(beside_user / value) if value and beside_user else None

        authority = cluster.get("certificate-authority")
        authorization, certificate = _credentials(user, cluster, beside_user, at(user.get("tokenFile")))
        return Endpoint(
            server=cluster["server"],
            authorization=authorization,
            ca_file=str(beside / authority) if authority and not cluster.get("certificate-authority-data") else None,
            ca_data=_pem(cluster.get("certificate-authority-data")),
            cert_file=at(user.get("client-certificate")),
            cert_data=_pem(user.get("client-certificate-data")),
            key_file=at(user.get("client-key")),
            key_data=_pem(user.get("client-key-data")),
            renewed_certificate=certificate,
            verify=not cluster.get("insecure-skip-tls-verify"),
            tls_server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url"),
            impersonation=acting,
        )
    except (ConfigInvalid, OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigInvalid(f"kubeconfig {os.pathsep.join(map(str, files))} is not usable: {error}") from error


class ContextName(NamedTuple):
    """A context of a kubeconfig; in a pod, which has none, the name is empty."""

    name: str
    namespace: str
    """Empty where the context names none."""


def context_name(files: list[pathlib.Path], context: str | None) -> ContextName:
    """Return the chosen context, or the current one. Raises ConfigInvalid."""
    try:
        config = _merged(files)
        chosen = context or config["current-context"]
        pair = _named(config, "contexts", chosen)["context"]
        return ContextName(str(chosen), str(pair.get("namespace") or ""))
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigInvalid(f"kubeconfig {os.pathsep.join(map(str, files))} is not usable: {error}") from error


def _merged(files: list[pathlib.Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {"current-context": None, "contexts": [], "clusters": [], "users": []}
    for file in files:
        config = yaml_text.load(file.read_text())
        merged["current-context"] = merged["current-context"] or config.get("current-context")
        for section in ("contexts", "clusters", "users"):
            merged[section] += [{**entry, _DIRECTORY: file.parent} for entry in config.get(section) or ()]
    return merged


def _named(config: dict[str, Any], section: str, name: str | None) -> dict[Any, Any]:
    for entry in config.get(section) or ():
        if entry.get("name") == name:
            found: dict[Any, Any] = entry
            return found
    raise ValueError(f"it has no entry {name!r} in `{section}`")


_Authorization = Callable[[], str | None]
_Certificate = Callable[[], ClientCertificate | None]


def _credentials(
    user: dict[str, Any], cluster: dict[str, Any], folder: pathlib.Path | None, token_file: str | None
) -> tuple[_Authorization, _Certificate]:
    """Return the credentials of a user: those of a provider, a token, a plugin or a password, the first that is set."""
    no_certificate: _Certificate = lambda: None  # noqa: E731 - typed, so that both returns agree
    if user.get("auth-provider") is not None:
        return provider_authorization(user["auth-provider"]), no_certificate
    # As in client-go, the file has precedence, and the token is used if the file cannot be read.
    if token_file:
        return TokenFile(pathlib.Path(token_file), otherwise=str(user.get("token") or "")), no_certificate
    if user.get("token"):
        header = f"Bearer {user['token']}"
        return lambda: header, no_certificate
    if user.get("exec") is not None:
        plugin = ExecCredentials(user["exec"], cluster, str((folder or pathlib.Path()).absolute()))
        return plugin.authorization, plugin.certificate
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}".encode()
        basic = "Basic " + base64.b64encode(pair).decode()
        return lambda: basic, no_certificate
    return lambda: None, no_certificate


def _pem(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None
