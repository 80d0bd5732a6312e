"""The Secrets that hold the keys of clients: makes them, reads them, and follows them in the cluster.

`herdsman key` writes them; the gateway only reads. They have a namespace of their own, because a right to list Secrets
concerns all Secrets of a namespace.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from gateway.access.caller import Caller
from gateway.access.key_limits import KeyLimits
from gateway.access.keys import Key, KeyRing, digest
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden
from kubeapi.informer import Informer
from kubeapi.json_types import Json

KEYS_NAMESPACE = "herdsman-keys"
"""The namespace of the Secrets, unless an option names another one."""
LABEL = "herdsman.dev/gateway-key"
SELECTOR = f"{LABEL}=true"
TYPE = "herdsman.dev/gateway-key"
POLL_S = 0.1
REFUSED_WAIT_S = 5.0
_DIGEST, _SETTINGS = "sha256", "key.json"

log = structlog.get_logger(__name__)


class SecretUnreadable(Exception):
    """The Secret holds no key that this version understands."""


def secret_name(key_id: str) -> str:
    """Return the name of the Secret of a key."""
    return f"herdsman-key-{key_id}"


def secret_of(key: str, caller: Caller, expires_s: float | None, limits: KeyLimits = KeyLimits()) -> Json:
    """Return the Secret for a new key. It holds the hash of the key."""
    settings: Json = {"name": caller.name}
    if caller.team:
        settings["team"] = caller.team
    if caller.models:
        settings["models"] = list(caller.models)
    if given := limits.as_settings():
        settings["limits"] = given
    if expires_s is not None:
        settings["expires"] = datetime.fromtimestamp(expires_s, UTC).isoformat()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(caller.key_id), "labels": {LABEL: "true"}},
        "type": TYPE,
        # Keys are revoked by deletion. A changed Secret would be a key that nobody was given.
        "immutable": True,
        "data": {_DIGEST: _encoded(digest(key)), _SETTINGS: _encoded(json.dumps(settings))},
    }


def key_of(secret: Json) -> Key:
    """Read the key of a Secret. Raises SecretUnreadable."""
    key_id = secret["metadata"]["name"].removeprefix(secret_name(""))
    data = secret.get("data") or {}
    try:
        settings = json.loads(base64.b64decode(data[_SETTINGS]))
        expires = settings.get("expires")
        caller = Caller(
            key_id,
            str(settings["name"]),
            str(settings.get("team", "")),
            tuple(settings.get("models", ())),
            KeyLimits.of_settings(settings.get("limits", {})).limits(key_id),
        )
        return Key(
            caller,
            base64.b64decode(data[_DIGEST]).decode("ascii"),
            datetime.fromisoformat(expires).timestamp() if expires is not None else None,
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        # The error's text could quote the Secret.
        raise SecretUnreadable(f"its data is not that of a key ({type(error).__name__})") from None


class KeySecrets:
    """Follows the Secrets of the keys. The last keys stay while the API server is away."""

    def __init__(
        self, client: KubeClient, *, publish: Callable[[KeyRing], None], namespace: str, optional: bool
    ) -> None:
        """`publish` gets all keys after each change, in another thread; the first time when all Secrets were listed.

        `optional`: if the gateway may not list the Secrets, it goes on as without any key.
        """
        self._publish = publish
        self._namespace = namespace
        self._optional = optional
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._reported: set[str] = set()
        """The versions of unreadable Secrets that the log names already."""
        self._informer = Informer(
            client,
            kinds.SECRETS,
            namespaces=(namespace,),
            label_selector=SELECTOR,
            transform=_trimmed,
            on_change=lambda _old, _new: self._changed.set(),
            on_refused=self._on_refused,
        )
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)

    def start(self) -> None:
        """Start to follow the Secrets; returns at once."""
        self._informer.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop all threads."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        self._informer.stop()

    def _run(self) -> None:
        while not self._informer.wait_synced(POLL_S):
            if self._stopping.is_set():
                return
        while not self._stopping.is_set():
            self._changed.clear()
            self._publish(self._ring())
            self._changed.wait()

    def _ring(self) -> KeyRing:
        keys: list[Key] = []
        unreadable = 0
        for secret in self._informer.list():
            try:
                keys.append(key_of(secret))
            except SecretUnreadable as error:
                unreadable += 1
                if (uid := secret["metadata"].get("uid", "")) not in self._reported:
                    self._reported.add(uid)
                    log.warning("Could not read a key", name=secret["metadata"]["name"], why=str(error))
        return KeyRing.of(keys, unreadable)

    def _on_refused(self, error: ApiError) -> float:
        without = self._optional and isinstance(error, Forbidden) and not self._informer.has_synced
        what = "Could not list the keys; requests need none" if without else "Could not list the keys"
        log.warning(what, namespace=self._namespace, why=str(error))
        if without:
            self._publish(KeyRing())
        return REFUSED_WAIT_S


def _trimmed(secret: Json) -> Json:
    kept = ("name", "namespace", "uid", "resourceVersion")
    metadata = {name: secret["metadata"][name] for name in kept if name in secret["metadata"]}
    return {"metadata": metadata, "data": secret.get("data") or {}}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
