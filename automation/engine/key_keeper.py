"""Keeps the key that encrypts the secrets of all stacks, and unwraps it for the CLI without a costly derivation.

Pulumi's passphrase provider derives a key with a million hash rounds in every CLI process: 0.15 to 0.2 s of CPU, a
third of a small run. The keeper derives the key once when the loop starts. The CLI calls it over loopback by the
protocol of HashiCorp Vault's transit engine (`hashivault://`). Herdsman puts no secret into a stack; one that appears
is encrypted with a data key that the keeper wraps (`data_key_cipher`). `pulumi_engine` starts and stops the keeper.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import pathlib
import secrets

from agent.http_server import BodyRefused, BoundedHandler, BoundedServer, Bounds
from automation.engine.data_key_cipher import DataKeyCipher

KEY_NAME = "herdsman"
PROVIDER_URL = f"hashivault://{KEY_NAME}"

_DATA_KEY_BYTES = 32
BOUNDS = Bounds(connections=256, per_client=256, body_bytes=64 * 1024, request_s=10.0)
"""Every client is a process of the CLI on this machine, so one address may use all connections."""


class PassphraseMissing(Exception):
    """The named passphrase file is missing or empty. Herdsman does not make another passphrase in its place."""


def read_passphrase(path: pathlib.Path) -> str:
    """Read the passphrase from a file that the settings name, such as a mounted Secret. Raises PassphraseMissing."""
    try:
        text = path.expanduser().read_text().strip()
    except (OSError, ValueError) as error:
        raise PassphraseMissing(f"the passphrase cannot be read from `{path}`: {error}") from error
    if not text:
        raise PassphraseMissing(f"`{path}` contains no passphrase")
    return text


def ensure_passphrase(path: pathlib.Path) -> str:
    """Read the passphrase; at the first start, write a random one to a file that only its owner can read."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(made)
    return made


class KeyKeeper:
    """Wraps and unwraps data keys for clients with the token. Only the CLI gets the token, in its environment."""

    def __init__(self, passphrase: str, *, old_passphrase: str | None = None) -> None:
        """`passphrase` wraps and unwraps; the old passphrase only unwraps, for a change of the passphrase."""
        self._cipher = DataKeyCipher(passphrase)
        self._old = DataKeyCipher(old_passphrase) if old_passphrase else None
        self._token = secrets.token_urlsafe(24)
        self._server = BoundedServer(("127.0.0.1", 0), self._handler(), name="key-keeper", bounds=BOUNDS)
        self._server.start()

    def environment(self) -> dict[str, str]:
        """The environment variables by which the CLI finds the keeper."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "VAULT_SERVER_URL": url,
            "VAULT_ADDR": url,
            "VAULT_SERVER_TOKEN": self._token,
            "VAULT_TOKEN": self._token,
        }

    def new_data_key(self) -> str:
        """Make a data key for one stack, wrapped, in the form of `encryptedkey` in the stack's settings."""
        wrapped = self._cipher.wrap(secrets.token_bytes(_DATA_KEY_BYTES))
        return base64.b64encode(wrapped.encode()).decode()

    def opens(self, data_key: str) -> bool:
        """Return whether the current passphrase opens a wrapped data key."""
        return self._plain(data_key, self._cipher) is not None

    def rewrapped(self, data_key: str) -> str | None:
        """Wrap a data key again with the current passphrase; None when neither passphrase opens it."""
        plain = self._plain(data_key, self._cipher)
        if plain is None and self._old is not None:
            plain = self._plain(data_key, self._old)
        return base64.b64encode(self._cipher.wrap(plain).encode()).decode() if plain is not None else None

    def close(self) -> None:
        """Stop the server."""
        self._server.stop()

    @staticmethod
    def _plain(data_key: str, cipher: DataKeyCipher) -> bytes | None:
        try:
            return cipher.unwrap(base64.b64decode(data_key, validate=True).decode())
        except ValueError:
            return None

    def _answer(self, path: str, body: dict[str, str]) -> dict[str, str] | None:
        """Answer as Vault's transit engine does. None for a path that it does not serve; ValueError for bad input."""
        if path == f"/v1/transit/encrypt/{KEY_NAME}":
            return {"ciphertext": self._cipher.wrap(base64.b64decode(body["plaintext"], validate=True))}
        if path == f"/v1/transit/decrypt/{KEY_NAME}":
            return {"plaintext": base64.b64encode(self._cipher.unwrap(body["ciphertext"])).decode()}
        return None

    def _handler(self) -> type[BoundedHandler]:
        keeper = self

        class Handler(BoundedHandler):
            def do_PUT(self) -> None:  # noqa: N802 - the base class calls it so
                if not hmac.compare_digest((self.headers.get("X-Vault-Token") or "").encode(), keeper._token.encode()):
                    self._reply(403, {"errors": ["permission denied"]})
                    return
                try:
                    data = keeper._answer(self.path, json.loads(self.body()))
                except BodyRefused as error:
                    self._reply(error.status, {"errors": [str(error)]})
                    return
                except (ValueError, KeyError, TypeError):
                    self._reply(400, {"errors": ["the key does not fit: this state has another passphrase"]})
                    return
                if data is None:
                    self._reply(404, {"errors": []})
                else:
                    self._reply(200, {"data": data})

            do_POST = do_PUT  # noqa: N815 - the name that http.server calls

            def _reply(self, status: int, body: object) -> None:
                self.answer(status, json.dumps(body).encode(), "application/json")

        return Handler
