"""Credentials of kubeconfigs with an exec plugin or an auth provider. Called by `kubeapi.kubeconfig`.

The package `kubernetes` runs the plugin and calls the provider. It is imported at the first call, since the import
takes 0.4 s of CPU and 34 MB. Its loader of kubeconfigs is not used for plugins: it continues without credentials when a
plugin fails, and never renews certificates (ADR 49).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from kubeapi.endpoint import ClientCertificate
from kubeapi.errors import ConfigInvalid

EARLY_S = 300.0
"""Credentials are renewed this many seconds before they expire, or when a tenth of their life is left, if that is
later."""
RETRY_S = 10.0
"""Least time in seconds between two runs of a plugin."""

_PROVIDERS = ("gcp", "oidc")
_ABSENT = "the Python package `kubernetes` is not installed: `pip install kubernetes`"
"""The package herdsman-agent does not bring it."""


class ExecCredentials:
    """The token, the client certificate or both of an exec plugin. Thread-safe.

    The constructor runs the plugin. It runs again before its credentials expire. If it then fails, its last credentials
    are used until they expire.
    """

    def __init__(self, section: Any, cluster: Mapping[str, Any], folder: str) -> None:
        """Run the plugin of the section `exec`; `folder` is that of the kubeconfig. Raises ConfigInvalid."""
        self._section = section
        self._cluster = cluster
        self._folder = folder
        self._lock = threading.Lock()
        self._token: str | None = None
        self._certificate: ClientCertificate | None = None
        self._run_again_at = self._expires_at = float("inf")
        self._run()

    def authorization(self) -> str | None:
        """Return the Authorization header; None if the plugin gives a certificate only. Raises ConfigInvalid."""
        with self._lock:
            self._renew()
            return self._token and f"Bearer {self._token}"

    def certificate(self) -> ClientCertificate | None:
        """Return the client certificate; None if the plugin gives a token only. Raises ConfigInvalid."""
        with self._lock:
            self._renew()
            return self._certificate

    def _renew(self) -> None:
        now = monotonic()
        if now < self._run_again_at:
            return
        try:
            self._run()
        except ConfigInvalid:
            if now >= self._expires_at:
                raise
            self._run_again_at = now + RETRY_S

    def _run(self) -> None:
        status = self._answer()
        token, expiry = status.get("token") or None, status.get("expirationTimestamp")
        certificate, key = status.get("clientCertificateData") or "", status.get("clientKeyData") or ""
        if token is not None and not isinstance(token, str):
            raise self._failed("its token is not a string")
        if not (isinstance(certificate, str) and isinstance(key, str)) or bool(certificate) != bool(key):
            raise self._failed("its client certificate or key is not valid")
        if not token and not certificate:
            raise self._failed("its answer has neither a token nor a client certificate")
        life = self._life(expiry)
        self._token = token
        self._certificate = ClientCertificate(certificate, key) if certificate else None
        now = monotonic()
        self._expires_at = now + life
        self._run_again_at = now + max(RETRY_S, life - min(EARLY_S, life / 10))

    def _answer(self) -> Mapping[str, Any]:
        try:
            from kubernetes.config.exec_provider import ExecProvider
            from kubernetes.config.kube_config import ConfigNode
        except ImportError as error:
            raise self._failed(_ABSENT) from error

        try:
            cluster = ConfigNode("cluster", copy.deepcopy(dict(self._cluster)))
            status = ExecProvider(ConfigNode("exec", self._section), self._folder, cluster).run()
        except FileNotFoundError as error:
            hint = self._section.get("installHint")
            raise self._failed(f"{error.strerror}{f'. {str(hint).strip()}' if hint else ''}") from error
        except Exception as error:  # a section with values of other types raises TypeError, KeyError and AttributeError
            raise self._failed(str(error)) from error
        if not isinstance(status, Mapping):
            raise self._failed("its answer has no status")
        return status

    def _life(self, expiry: Any) -> float:
        """Return for how many seconds the credentials are valid; infinity if the plugin sets no time."""
        if not expiry:
            return float("inf")
        from kubernetes.config.dateutil import parse_rfc3339

        try:
            expires: datetime = parse_rfc3339(expiry)
            return (expires - datetime.now(UTC)).total_seconds()
        except Exception as error:  # both its regular expression and datetime raise several types
            raise self._failed(f"its expirationTimestamp {str(expiry)[:64]!r} is not a time") from error

    def _failed(self, why: str) -> ConfigInvalid:
        command = self._section.get("command") if isinstance(self._section, Mapping) else None
        return ConfigInvalid(f"the exec plugin `{command}` gives no credentials: {why}")


def provider_authorization(provider: Any) -> Callable[[], str]:
    """Return a function that gives and renews the Authorization header of an `auth-provider`.

    It uses the package's loader. Raises ConfigInvalid for a provider that the package does not support or that has no
    token.
    """
    name = provider.get("name") if isinstance(provider, Mapping) else None
    if name not in _PROVIDERS:
        raise ConfigInvalid(
            f"`auth-provider` is {name!r}; {' and '.join(_PROVIDERS)} are supported. Use an exec plugin"
        )
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ConfigInvalid(f"the auth provider {name!r} gives no credentials: {_ABSENT}") from error

    # Only the user's section: `kubeapi.kubeconfig` reads server and certificates.
    alone = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {}}],
        "users": [{"name": name, "user": {"auth-provider": copy.deepcopy(provider)}}],
    }
    configuration = client.Configuration()
    lock = threading.Lock()

    def authorization() -> str:
        with lock:
            try:
                header: str | None = configuration.get_api_key_with_prefix("BearerToken")
            except Exception as error:  # google.auth, OAuth and the HTTP client raise different errors
                raise ConfigInvalid(f"the auth provider {name!r} gives no credentials: {error}") from error
        if not header:
            raise ConfigInvalid(f"the auth provider {name!r} gives no credentials: its section has no valid token")
        return header

    try:
        config.load_kube_config_from_dict(alone, client_configuration=configuration, persist_config=False)
    except Exception as error:  # the loader raises KeyError, TypeError and ConfigException
        raise ConfigInvalid(f"the auth provider {name!r} gives no credentials: {error}") from error
    authorization()
    return authorization
