"""How to reach a cluster: server, trust and credentials, read from a kubeconfig or from inside a pod.

Called by `kubeapi.client`. A single kubeconfig with certificates, a token or a password is read here, and so is a
pod's service account. Everything else (exec plugins, auth providers, several merged files) is left to the `kubernetes`
package, which is imported only then: it costs a process 12 MB and a tenth of a second.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import pathlib
import ssl
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from kubeapi import yaml_text
from kubeapi.errors import ConfigInvalid

DEFAULT_KUBECONFIG = "~/.kube/config"
SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_S = 60.0
"""Files with tokens are rotated by whoever wrote them; this is how long one that was read is used."""

_FOREIGN = {"exec", "auth-provider"}


@dataclass(frozen=True)
class Endpoint:
    """One cluster and one user of it, as some configuration describes them."""

    server: str
    authorization: Callable[[], str | None] = lambda: None
    ca_file: str | None = None
    ca_data: str | None = None
    """Certificates in PEM; so is `cert_data`, and `key_data` is a key in PEM."""
    cert_file: str | None = None
    cert_data: str | None = None
    key_file: str | None = None
    key_data: str | None = None
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None


class Access:
    """An endpoint that can be read again. `authorization()` is asked before each request and refreshes what expires."""

    def __init__(self, load: Callable[[], Endpoint]) -> None:
        self._load = load
        self._endpoint = load()
        if not self._endpoint.server.startswith(("https://", "http://")):
            raise ConfigInvalid(f"the server {self._endpoint.server!r} is no http(s) URL")

    @property
    def server(self) -> str:
        """The server's URL, without a slash at its end."""
        return self._endpoint.server.rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The proxy to go through. One from the environment is never used for loopback or what $NO_PROXY names."""
        if self._endpoint.proxy:
            return self._endpoint.proxy
        parts = urllib.parse.urlsplit(self.server)
        host = parts.hostname or ""
        if _is_loopback(host) or urllib.request.proxy_bypass(host):
            return None
        return urllib.request.getproxies().get(parts.scheme)

    @property
    def tls_server_name(self) -> str | None:
        """The name that the server's certificate must carry, where it is not the host of the URL."""
        return self._endpoint.tls_server_name

    def authorization(self) -> str | None:
        """The Authorization header, or None where a client certificate is all there is. Raises ConfigInvalid."""
        return self._endpoint.authorization()

    def reload(self) -> None:
        """Read everything again: a token or kubeconfig may have been renewed on disk. Raises ConfigInvalid."""
        self._endpoint = self._load()

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS with verification on unless the kubeconfig switches it off; None for a plain http server."""
        endpoint = self._endpoint
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=endpoint.ca_file, cadata=endpoint.ca_data)
            if endpoint.cert_file or endpoint.cert_data:
                _load_client_certificate(context, endpoint)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigInvalid(f"the certificates cannot be loaded: {error}") from error
        if not endpoint.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def kubeconfig_access(path: str | None = None, context: str | None = None) -> Access:
    """Read a kubeconfig: `path`, else $KUBECONFIG (several files are merged), else ~/.kube/config.

    Raises ConfigInvalid when no file is there or it names no such context.
    """
    files = path or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    names = [name for name in files.split(os.pathsep) if name]
    found = [file for name in names if (file := pathlib.Path(name).expanduser()).is_file()]
    if not found:
        raise ConfigInvalid(f"no kubeconfig at {files}")

    def load() -> Endpoint:
        if len(found) == 1:
            endpoint = _read_kubeconfig(found[0], context)
            if endpoint is not None:
                return endpoint
        return _read_by_package(os.pathsep.join(map(str, found)), context)

    return Access(load)


def in_cluster_access(service_account: pathlib.Path = SERVICE_ACCOUNT) -> Access:
    """Use the service account of the pod that we run in; its token is read again as it rotates.

    Raises ConfigInvalid outside a pod.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigInvalid("not inside a pod: KUBERNETES_SERVICE_HOST and _PORT are not set")
    token, authority = service_account / "token", service_account / "ca.crt"
    if not token.is_file():
        raise ConfigInvalid(f"no service account token at {token}")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(lambda: Endpoint(server, authorization=_TokenFile(token), ca_file=str(authority)))


def default_access(path: str | None = None) -> Access:
    """Choose as controllers do: `path`, $KUBECONFIG, the pod's service account, ~/.kube/config."""
    if path or os.environ.get("KUBECONFIG"):
        return kubeconfig_access(path)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster_access()
    return kubeconfig_access()


class _TokenFile:
    """The bearer token that stands in a file, read again every minute."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._header = ""

    def __call__(self) -> str:
        if time.monotonic() - self._read_at > TOKEN_REREAD_S:
            try:
                self._header = f"Bearer {self._path.read_text().strip()}"
            except OSError as error:
                raise ConfigInvalid(f"the token cannot be read: {error}") from error
            self._read_at = time.monotonic()
        return self._header


def _read_kubeconfig(file: pathlib.Path, context: str | None) -> Endpoint | None:
    """Read one plain kubeconfig; None where it needs what only the `kubernetes` package knows."""
    try:
        config = yaml_text.load(file.read_text())
        chosen = context or config.get("current-context")
        pair = _named(config, "contexts", chosen)["context"]
        cluster = _named(config, "clusters", pair["cluster"])["cluster"]
        user = (_named(config, "users", pair["user"]).get("user") or {}) if pair.get("user") else {}
        if _FOREIGN & user.keys():
            return None

        def at(value: str | None) -> str | None:
            return str(file.parent / value) if value else None

        return Endpoint(
            server=cluster["server"],
            authorization=_authorization(user, at(user.get("tokenFile"))),
            ca_file=None if cluster.get("certificate-authority-data") else at(cluster.get("certificate-authority")),
            ca_data=_pem(cluster.get("certificate-authority-data")),
            cert_file=at(user.get("client-certificate")),
            cert_data=_pem(user.get("client-certificate-data")),
            key_file=at(user.get("client-key")),
            key_data=_pem(user.get("client-key-data")),
            verify=not cluster.get("insecure-skip-tls-verify"),
            tls_server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url"),
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigInvalid(f"kubeconfig {file} is not usable: {error}") from error


def _named(config: dict[str, Any], section: str, name: str | None) -> dict[str, Any]:
    for entry in config.get(section) or ():
        if entry.get("name") == name:
            found: dict[str, Any] = entry
            return found
    raise ValueError(f"it has no entry {name!r} in `{section}`")


def _authorization(user: dict[str, Any], token_file: str | None) -> Callable[[], str | None]:
    if user.get("token"):  # kubectl lets it win over the file
        header = f"Bearer {user['token']}"
        return lambda: header
    if token_file:
        return _TokenFile(pathlib.Path(token_file))
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}".encode()
        basic = "Basic " + base64.b64encode(pair).decode()
        return lambda: basic
    return lambda: None


def _pem(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None


def _load_client_certificate(context: ssl.SSLContext, endpoint: Endpoint) -> None:
    # The ssl module takes certificates and keys from files only; these live for one call, readable by us alone.
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


def _read_by_package(files: str, context: str | None) -> Endpoint:
    from kubernetes import client, config

    configuration = client.Configuration()
    lock = threading.Lock()
    try:
        config.load_kube_config(
            config_file=files, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # the loader raises KeyError, TypeError, YAML and OS errors as well as its own
        raise ConfigInvalid(f"kubeconfig {files} is not usable: {error}") from error

    def authorization() -> str | None:
        with lock:
            try:
                return configuration.get_api_key_with_prefix("BearerToken") or None
            except Exception as error:
                raise ConfigInvalid(f"the credentials could not be refreshed: {error}") from error

    proxied = configuration.proxy not in (None, *urllib.request.getproxies().values())
    return Endpoint(
        server=configuration.host or "",
        authorization=authorization,
        ca_file=configuration.ssl_ca_cert or None,
        cert_file=configuration.cert_file or None,
        key_file=configuration.key_file or None,
        verify=configuration.verify_ssl is not False,
        tls_server_name=configuration.tls_server_name or None,
        proxy=configuration.proxy if proxied else None,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
