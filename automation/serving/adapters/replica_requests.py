"""Sends requests to replicas: through the API server, or, for engines with an API key, to the pod itself.

The API server replaces the Authorization header of requests that it passes on to pods, so a key cannot go that way.
Then the loop connects to the pod's address, which works where pods are reachable: in the cluster. The key is read for
each series of requests, and kept in no field and no message. It is sent over TLS only after the engine's certificate
was verified, as the gateway does it (`program.dialects.engine_access`).
"""

from __future__ import annotations

import base64
import binascii
import functools
import http.client
import json
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from automation.serving.adapters.engine_requests import Ask, RequestFailed
from automation.serving.engine_start import EngineStart
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound
from kubeapi.exchange import Exchange
from kubeapi.pods import MAX_ANSWER_BYTES, PathRefused, request_pod
from program.desired.adapter import AdapterReason
from program.dialects.engine_access import AUTHORITY, CERTIFICATE, Requirements, SecretValues, access_of

_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
_READER = "docs/install/secrets-reader.yaml lets it read the Secrets of a namespace"


class ReplicaRequests:
    """Makes the functions that ask replicas. Thread-safe."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def asking(
        self, start: EngineStart, secrets: Sequence[tuple[str, str]], certified: Requirements = Requirements()
    ) -> Ask:
        """Return the function that sends requests to a replica. `secrets` has Secret and key of the engine's API key.

        Further ones are those before it, which replicas may still demand. `certified` names the Secret by which the
        certificate of an engine with TLS is verified. Raises RequestFailed if one of the first two cannot be read.
        """
        if not secrets:
            return _Proxied(self._client, start)
        tls = self._tls(certified) if start.tls else None
        present, *earlier = secrets
        key = self._key(start.namespace, *present)
        others = [functools.partial(self._key, start.namespace, *each) for each in earlier]
        return _Direct(self._address(start), start.port, key, others, tls=tls, name=certified.server_name)

    def _tls(self, certified: Requirements) -> ssl.SSLContext:
        """Return the context that verifies the engine's certificate."""
        secret, values = certified.certificates, SecretValues()
        if secret is not None:
            try:
                data = self._client.get(kinds.SECRETS, secret.namespace, secret.name).get("data") or {}
                public = {part: str(data[part]) for part in (AUTHORITY, CERTIFICATE) if data.get(part)}
                decoded = {part: base64.b64decode(text, validate=True).decode() for part, text in public.items()}
                values = SecretValues(decoded)
            except Forbidden:
                values = SecretValues(problem=f"`{secret.name}` may not be read by the loop; {_READER}")
            except NotFound:
                values = SecretValues(problem=f"`{secret.name}` does not exist")
            except (ApiError, binascii.Error, UnicodeDecodeError) as error:
                values = SecretValues(problem=f"`{secret.name}` cannot be read: {type(error).__name__}")
        found = access_of(certified, {secret: values} if secret is not None else {}, tls=True)
        if found.tls is None:
            raise RequestFailed(AdapterReason.KEY_OVER_TLS, f"the engine demands an API key over TLS: {found.problem}")
        return found.tls

    def _key(self, namespace: str, name: str, key: str) -> str:
        unreadable = AdapterReason.ENGINE_KEY_NOT_READABLE
        try:
            data = self._client.get(kinds.SECRETS, namespace, name).get("data") or {}
            text = base64.b64decode(data.get(key) or "", validate=True).decode().strip()
        except Forbidden:
            # The name is not repeated: a user may have written the key itself in its place.
            why = f"the loop may not read the Secret of the engine's key; {_READER}"
            raise RequestFailed(unreadable, why) from None
        except NotFound:
            raise RequestFailed(unreadable, "the Secret of the engine's key does not exist") from None
        except ApiError as error:
            raise RequestFailed(unreadable, f"the Secret of the engine's key: {error.reason}") from None
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        if not _KEY.fullmatch(text):
            raise RequestFailed(unreadable, "the Secret of the engine's key has no valid key")
        return text

    def _address(self, start: EngineStart) -> str:
        try:
            pod = self._client.get(kinds.PODS, start.namespace, start.pod)
        except ApiError as error:
            raise RequestFailed(AdapterReason.REPLICA_UNREACHABLE, f"the pod's address: {error}") from None
        address = str((pod.get("status") or {}).get("podIP") or "")
        if not address or pod["metadata"].get("uid") != start.uid:
            raise RequestFailed(AdapterReason.REPLICA_UNREACHABLE, "the pod has no address")
        return address


class _Proxied:
    """Requests through the API server."""

    def __init__(self, client: KubeClient, start: EngineStart) -> None:
        self._client = client
        self._start = start

    def __call__(self, method: str, path: str, body: Any, timeout_s: float) -> Exchange:
        start = self._start
        try:
            return request_pod(
                self._client,
                start.namespace,
                start.pod,
                start.port,
                method,
                path,
                body=body,
                timeout_s=timeout_s,
                tls=start.tls,
            )
        except (ApiError, PathRefused) as error:
            raise RequestFailed(AdapterReason.REPLICA_UNREACHABLE, f"{method} {path}: {error}") from None


class _Direct:
    """Requests to the pod's address, with the engine's key."""

    def __init__(
        self,
        address: str,
        port: int,
        key: str,
        others: Sequence[Callable[[], str]],
        *,
        tls: ssl.SSLContext | None,
        name: str,
    ) -> None:
        """`others` read the keys that are tried if the engine refuses the first one.

        `tls` verifies the engine's certificate, which is valid for `name`; None: the engine serves without TLS.
        """
        self._tls = tls
        self._name = name
        self._address = address
        self._port = port
        self._key = key
        self._others = list(others)

    def __call__(self, method: str, path: str, body: Any, timeout_s: float) -> Exchange:
        answer = self._sent(self._key, method, path, body, timeout_s)
        while answer.status == 401 and self._others:
            try:
                self._key = self._others.pop(0)()
            except RequestFailed:
                continue  # it is deleted when no replica demands it any more
            answer = self._sent(self._key, method, path, body, timeout_s)
        return answer

    def _sent(self, key: str, method: str, path: str, body: Any, timeout_s: float) -> Exchange:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {key}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            if self._tls is not None:
                connection.sock = self._tls.wrap_socket(connection.sock, server_hostname=self._name)
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            read = answer.read(MAX_ANSWER_BYTES)
            return Exchange(answer.status, dict(answer.getheaders()), read, not answer.read(1))
        except ssl.SSLCertVerificationError as error:
            why = f"the engine's certificate is not valid for `{self._name}`: {error.verify_message}"
            raise RequestFailed(AdapterReason.KEY_OVER_TLS, why) from None
        except (OSError, http.client.HTTPException) as error:
            why = f"{method} {path}: no answer from the pod's address: {error}"
            raise RequestFailed(AdapterReason.REPLICA_UNREACHABLE, why) from None
        finally:
            connection.close()
