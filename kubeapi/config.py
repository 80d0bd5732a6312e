"""How to reach a cluster: server, trust and credentials, read from a kubeconfig or from inside a pod.

Called by `kubeapi.client`. Kubeconfigs with certificates, a token or a password are read here, one or several that are
merged, and so is a pod's service account. Exec plugins and auth providers are left to the `kubernetes` package, which
is imported only then: it costs a process 12 MB and a tenth of a second. Whom to act as is always read here, since the
package does not.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
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
from kubeapi.impersonation import Headers, impersonation_headers

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
    impersonation: Headers = ()
    """Headers that name the identity to act as."""


class Access:
    """An endpoint that can be read again. `authorization()` is asked before each request and refreshes what expires."""

    def __init__(self, load: Callable[[], Endpoint]) -> None:
        self._load = load
        self._endpoint = load()
        server: object = self._endpoint.server
        if not isinstance(server, str) or not server.startswith(("https://", "http://")):
            raise ConfigInvalid(f"the server {str(server)[:200]!r} is no http(s) URL")

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

    @property
    def impersonation(self) -> Headers:
        """Headers that name the identity to act as; none where requests are made as the user itself."""
        return self._endpoint.impersonation

    def reload(self) -> None:
        """Read everything again: a token or kubeconfig may have been renewed on disk.

        Raises ConfigInvalid, also for another server: its credentials must not be sent to this one.
        """
        endpoint = self._load()
        if endpoint.server.rstrip("/") != self.server:
            raise ConfigInvalid(f"the kubeconfig names {endpoint.server} now and no longer {self.server}")
        self._endpoint = endpoint

    def tls_identity(self) -> str:
        """A digest of everything that `ssl_context` is made of, files included: another one asks for new connections.

        A file that cannot be read now counts as absent.
        """
        endpoint = self._endpoint
        digest = hashlib.sha256()
        given = (endpoint.ca_data, endpoint.cert_data, endpoint.key_data, endpoint.tls_server_name)
        for text in (*given, str(endpoint.verify)):
            digest.update(f"{text}\0".encode())
        for file in (endpoint.ca_file, endpoint.cert_file, endpoint.key_file):
            digest.update(_bytes_of(file) + b"\0")
        return digest.hexdigest()

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
        return _read_kubeconfigs(found, context)

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
    """The bearer token that stands in a file, read again every minute.

    While the file cannot be read, the token that was read last holds, and before there is one, `otherwise`. Without
    either, the call raises ConfigInvalid.
    """

    def __init__(self, path: pathlib.Path, otherwise: str = "") -> None:
        self._path = path
        self._read_at = float("-inf")
        self._token = otherwise

    def __call__(self) -> str:
        if time.monotonic() - self._read_at > TOKEN_REREAD_S:
            try:
                if not (token := self._path.read_text().strip()):
                    raise ConfigInvalid(f"the token in {self._path} is empty")
                self._token, self._read_at = token, time.monotonic()
            except (OSError, ValueError, ConfigInvalid) as error:
                if not self._token:
                    raise ConfigInvalid(f"the token cannot be read: {error}") from error
        return f"Bearer {self._token}"


def _read_kubeconfigs(files: list[pathlib.Path], context: str | None) -> Endpoint:
    """Read kubeconfigs as one: of entries with one name, and of current contexts, the first counts."""
    try:
        config = _merged(files)
        chosen = context or config["current-context"]
        pair = _named(config, "contexts", chosen)["context"]
        entry = _named(config, "clusters", pair["cluster"])
        cluster, beside = entry["cluster"], entry[_DIRECTORY]
        named = _named(config, "users", pair["user"]) if pair.get("user") else {}
        user, beside_user = named.get("user") or {}, named.get(_DIRECTORY)
        acting = impersonation_headers(user)
        if _FOREIGN & user.keys():
            by_package = _read_by_package(os.pathsep.join(map(str, files)), context)
            return dataclasses.replace(by_package, impersonation=acting)

        def at(value: str | None) -> str | None:
            return str(beside_user / value) if value and beside_user else None

        authority = cluster.get("certificate-authority")
        return Endpoint(
            server=cluster["server"],
            authorization=_authorization(user, at(user.get("tokenFile"))),
            ca_file=str(beside / authority) if authority and not cluster.get("certificate-authority-data") else None,
            ca_data=_pem(cluster.get("certificate-authority-data")),
            cert_file=at(user.get("client-certificate")),
            cert_data=_pem(user.get("client-certificate-data")),
            key_file=at(user.get("client-key")),
            key_data=_pem(user.get("client-key-data")),
            verify=not cluster.get("insecure-skip-tls-verify"),
            tls_server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url"),
            impersonation=acting,
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigInvalid(f"kubeconfig {os.pathsep.join(map(str, files))} is not usable: {error}") from error


_DIRECTORY = object()
"""Key under which a merged entry has the directory of its file, to which its paths are relative."""


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


def _authorization(user: dict[str, Any], token_file: str | None) -> Callable[[], str | None]:
    # As client-go: the file is the newer of two, and the token stands in for a file that cannot be read.
    if token_file:
        return _TokenFile(pathlib.Path(token_file), otherwise=str(user.get("token") or ""))
    if user.get("token"):
        header = f"Bearer {user['token']}"
        return lambda: header
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}".encode()
        basic = "Basic " + base64.b64encode(pair).decode()
        return lambda: basic
    return lambda: None


def _bytes_of(file: str | None) -> bytes:
    try:
        return pathlib.Path(file).read_bytes() if file else b""
    except OSError:
        return b""


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
