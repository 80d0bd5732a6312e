"""How to reach a cluster: server, trust and credentials, read from a kubeconfig or from inside a pod.

Called by `kubeapi.client`. The only module that imports the `kubernetes` package, which knows every form of
kubeconfig (exec plugins, token files, merged files, relative paths).
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from kubeapi.errors import ConfigInvalid

DEFAULT_KUBECONFIG = "~/.kube/config"


class Access:
    """One cluster and one user of it. `authorization()` is asked before each request and refreshes what expires."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._configuration = load()
        if not self._configuration.host:
            raise ConfigInvalid("the configuration names no server")

    @property
    def server(self) -> str:
        """The server's URL, without a slash at its end."""
        return str(self._configuration.host).rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The proxy to go through. One from the environment is never used for loopback or what $NO_PROXY names."""
        proxy: str | None = self._configuration.proxy or None
        host = urllib.parse.urlsplit(self.server).hostname or ""
        if proxy in urllib.request.getproxies().values() and (_is_loopback(host) or urllib.request.proxy_bypass(host)):
            return None
        return proxy

    @property
    def tls_server_name(self) -> str | None:
        return self._configuration.tls_server_name or None

    def authorization(self) -> str | None:
        """The Authorization header, or None where a client certificate is all there is."""
        with self._lock:
            try:
                return self._configuration.get_api_key_with_prefix("BearerToken") or None
            except Exception as error:
                raise ConfigInvalid(f"the credentials could not be refreshed: {error}") from error

    def reload(self) -> None:
        """Read everything again: a token file or kubeconfig may have been renewed on disk."""
        configuration = self._load()
        with self._lock:
            self._configuration = configuration

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS with verification on unless the kubeconfig switches it off; None for a plain http server."""
        configuration = self._configuration
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
            if configuration.cert_file:
                context.load_cert_chain(configuration.cert_file, configuration.key_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigInvalid(f"the certificates cannot be loaded: {error}") from error
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def kubeconfig_access(path: str | None = None, context: str | None = None) -> Access:
    """Read a kubeconfig: `path`, else $KUBECONFIG (several files are merged), else ~/.kube/config.

    Raises ConfigInvalid when no file is there or it names no such context.
    """
    files = path or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    if path and not pathlib.Path(path).expanduser().is_file():
        raise ConfigInvalid(f"no kubeconfig at {path}")

    def load() -> Any:
        from kubernetes import client, config

        configuration = client.Configuration()
        try:
            config.load_kube_config(
                config_file=files, context=context, client_configuration=configuration, persist_config=False
            )
        except Exception as error:  # the loader raises KeyError, TypeError, YAML and OS errors as well as its own
            raise ConfigInvalid(f"kubeconfig {files} is not usable: {error}") from error
        return configuration

    return Access(load)


def in_cluster_access() -> Access:
    """Use the service account of the pod that we run in; its token is read again as it rotates.

    Raises ConfigInvalid outside a pod.
    """

    def load() -> Any:
        from kubernetes import client, config

        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except Exception as error:
            raise ConfigInvalid(f"no in-cluster configuration: {error}") from error
        return configuration

    return Access(load)


def default_access(path: str | None = None) -> Access:
    """Choose as controllers do: `path`, $KUBECONFIG, the pod's service account, ~/.kube/config."""
    if path or os.environ.get("KUBECONFIG"):
        return kubeconfig_access(path)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster_access()
    return kubeconfig_access()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
