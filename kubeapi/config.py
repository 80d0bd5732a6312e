"""The access to a cluster (server, trust, credentials, connections), by a kubeconfig or the pod's service account.

Called by `kubeapi.client`; `kubeapi.kubeconfig` reads kubeconfigs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import os
import pathlib
import socket
import ssl
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import urllib3

from kubeapi.endpoint import Endpoint as Endpoint
from kubeapi.endpoint import Headers, TokenFile
from kubeapi.errors import ConfigInvalid, NotConfigured
from kubeapi.kubeconfig import ContextName, context_name, read_kubeconfigs

DEFAULT_KUBECONFIG = "~/.kube/config"
SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Access:
    """An endpoint that can be read again.

    `authorization()` is called before each request and renews expired credentials.
    """

    def __init__(self, load: Callable[[], Endpoint]) -> None:
        self._load = load
        self._endpoint = load()
        server: object = self._endpoint.server
        if not isinstance(server, str) or not server.startswith(("https://", "http://")):
            raise ConfigInvalid(f"the server {str(server)[:200]!r} is not an http or https URL")

    @property
    def server(self) -> str:
        """The server's URL without a slash at the end."""
        return self._endpoint.server.rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The proxy to use. A proxy from the environment is never used for loopback or for hosts in $NO_PROXY."""
        if self._endpoint.proxy:
            return self._endpoint.proxy
        parts = urllib.parse.urlsplit(self.server)
        host = parts.hostname or ""
        if _is_loopback(host) or urllib.request.proxy_bypass(host):
            return None
        return urllib.request.getproxies().get(parts.scheme)

    @property
    def tls_server_name(self) -> str | None:
        """The name in the server's certificate if it is not the host of the URL."""
        return self._endpoint.tls_server_name

    def authorization(self) -> str | None:
        """Return the Authorization header, or None if only a client certificate is configured. Raises ConfigInvalid."""
        return self._endpoint.authorization()

    @property
    def impersonation(self) -> Headers:
        """Headers of the identity to act as; empty for requests as the user itself."""
        return self._endpoint.impersonation

    def reload(self) -> None:
        """Read the configuration again, because a token or kubeconfig may have been renewed on disk.

        Raises ConfigInvalid, also if the server is another one: its credentials must not be sent to this server.
        """
        endpoint = self._load()
        if endpoint.server.rstrip("/") != self.server:
            raise ConfigInvalid(f"the kubeconfig now names server {endpoint.server} instead of {self.server}")
        self._endpoint = endpoint

    def tls_identity(self) -> str:
        """Return a digest of everything in `ssl_context`, files included. If it changes, new connections are needed.

        A file that cannot be read counts as absent. Raises ConfigInvalid if an exec plugin fails to renew its
        certificate.
        """
        endpoint = self._endpoint
        digest = hashlib.sha256()
        renewed = endpoint.renewed_certificate() or ()
        given = (endpoint.ca_data, endpoint.cert_data, endpoint.key_data, endpoint.tls_server_name, *renewed)
        for text in (*given, str(endpoint.verify)):
            digest.update(f"{text}\0".encode())
        for file in (endpoint.ca_file, endpoint.cert_file, endpoint.key_file):
            digest.update(_bytes_of(file) + b"\0")
        return digest.hexdigest()

    def authority(self) -> str | None:
        """Return the certificates in PEM of the server's authority, or None if the server is not verified by one.

        Raises ConfigInvalid if their file cannot be read.
        """
        endpoint = self._endpoint
        if not endpoint.verify:
            return None
        if endpoint.ca_data or not endpoint.ca_file:
            return endpoint.ca_data
        try:
            return pathlib.Path(endpoint.ca_file).read_text()
        except (OSError, ValueError) as error:
            raise ConfigInvalid(f"the certificates cannot be read: {error}") from error

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a TLS context, with verification unless the kubeconfig disables it; None for an http server."""
        endpoint = self._endpoint
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=endpoint.ca_file, cadata=endpoint.ca_data)
            if renewed := endpoint.renewed_certificate():
                given = dataclasses.replace(endpoint, cert_data=renewed.certificate, key_data=renewed.key)
                _load_client_certificate(context, given)
            elif endpoint.cert_file or endpoint.cert_data:
                _load_client_certificate(context, endpoint)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigInvalid(f"the certificates cannot be loaded: {error}") from error
        if not endpoint.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def kubeconfig_access(path: str | None = None, context: str | None = None) -> Access:
    """Read a kubeconfig: `path`, else $KUBECONFIG (several files are merged), else ~/.kube/config.

    Raises NotConfigured if no file exists, ConfigInvalid if it has no such context.
    """
    found = _files(path)

    def load() -> Endpoint:
        return read_kubeconfigs(found, context)

    return Access(load)


def in_cluster_access(service_account: pathlib.Path = SERVICE_ACCOUNT) -> Access:
    """Return the access by the service account of this process's pod. Its token is read again as it rotates.

    Raises ConfigInvalid outside a pod.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigInvalid("not inside a pod: KUBERNETES_SERVICE_HOST and _PORT are not set")
    token, authority = service_account / "token", service_account / "ca.crt"
    if not token.is_file():
        raise ConfigInvalid(f"no service account token at {token}")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(lambda: Endpoint(server, authorization=TokenFile(token), ca_file=str(authority)))


def default_access(path: str | None = None, *, context: str | None = None) -> Access:
    """Return the access that controllers use: by `path`, $KUBECONFIG, the pod's service account, or ~/.kube/config.

    With a context it is always a kubeconfig.
    """
    if path or context or os.environ.get("KUBECONFIG"):
        return kubeconfig_access(path, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster_access()
    return kubeconfig_access()


def configured_context(
    path: str | None = None, context: str | None = None, *, service_account: pathlib.Path = SERVICE_ACCOUNT
) -> ContextName:
    """Return name and namespace of the context that `default_access` uses. In a pod, the pod's namespace.

    Raises ConfigInvalid as `default_access` does.
    """
    if not (path or context or os.environ.get("KUBECONFIG")) and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ContextName("", _bytes_of(str(service_account / "namespace")).decode("utf-8", "replace").strip())
    return context_name(_files(path), context)


def _files(path: str | None) -> list[pathlib.Path]:
    """Return the existing kubeconfigs. Raises NotConfigured without one."""
    files = path or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    names = [name for name in files.split(os.pathsep) if name]
    found = [file for name in names if (file := pathlib.Path(name).expanduser()).is_file()]
    if not found:
        raise NotConfigured(f"there is no kubeconfig at {files}")
    return found


def _bytes_of(file: str | None) -> bytes:
    try:
        return pathlib.Path(file).read_bytes() if file else b""
    except OSError:
        return b""


def _load_client_certificate(context: ssl.SSLContext, endpoint: Endpoint) -> None:
    # The ssl module reads certificates and keys from files only. These exist for one call; only this user can read
    # them.
    with tempfile.TemporaryDirectory(prefix="herdsman-") as folder:
        cert, key = endpoint.cert_file, endpoint.key_file
        if endpoint.cert_data:
            cert = _private_file(folder, "cert", endpoint.cert_data)
        if endpoint.key_data:
            key = _private_file(folder, "key", endpoint.key_data)
        assert cert is not None
        context.load_cert_chain(cert, key)


def _private_file(folder: str, name: str, text: str) -> str:
    path = pathlib.Path(folder) / name
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


POOL_SIZE = 96
"""Connections that are kept: one for the watch of each kind of each dialect, and one for each worker's requests."""


def connection_pool(access: Access, *, give_up_s: float | None = None) -> urllib3.PoolManager:
    """Return a pool with the TLS settings, server name and proxy of an access. No connection is opened yet.

    If the server does not acknowledge sent data for `give_up_s`, the connection ends and the data is not sent again,
    even if this process has ended by then. Systems without TCP_USER_TIMEOUT ignore it.
    """
    settings: dict[str, Any] = {
        "num_pools": 2,
        "maxsize": POOL_SIZE,
        "block": False,
        # A peer that vanished is noticed within a minute, also on a silent watch.
        "socket_options": [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            *(
                (socket.IPPROTO_TCP, getattr(socket, option), value)
                for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
                if hasattr(socket, option)
            ),
            *(
                ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up_s * 1000)),)
                if give_up_s is not None and hasattr(socket, "TCP_USER_TIMEOUT")
                else ()
            ),
        ],
    }
    context = access.ssl_context()
    if context is not None:
        settings["ssl_context"] = context
        if access.tls_server_name:
            settings["server_hostname"] = access.tls_server_name
            settings["assert_hostname"] = access.tls_server_name
        if not context.check_hostname:
            settings["cert_reqs"] = "CERT_NONE"
    if access.proxy:
        return urllib3.ProxyManager(access.proxy, **settings)
    return urllib3.PoolManager(**settings)
