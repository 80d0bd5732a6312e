"""Encrypts the data keys of stacks with a key that is derived from the passphrase. Called by `key_keeper`.

Each stack has a random data key, with which the CLI encrypts secrets. It is stored encrypted ("wrapped"), as text with
a prefix for its form. New ones have the form of libsodium's secretbox, XSalsa20 with Poly1305. Development versions
wrapped with AES-GCM; those keys are still read. The package for AES-GCM takes 7 MB, so it is imported for them only.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import TYPE_CHECKING

from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_PREFIX = "vault:v2:"
_PREFIX_OF_AES = "vault:v1:"
_NONCE_BYTES_OF_AES = 12


class WrongKey(ValueError):
    """The text was wrapped with another passphrase, or changed."""


class DataKeyCipher:
    """Wraps and unwraps data keys with one passphrase. Thread-safe."""

    def __init__(self, passphrase: str) -> None:
        """Derive the key, which takes some hundredths of a second and 16 MiB."""
        self._passphrase = passphrase
        self._box = SecretBox(_derived(passphrase, b"herdsman/stack-secrets/2"))

    def wrap(self, plain: bytes) -> str:
        """Return a data key encrypted, with another nonce each time."""
        return _PREFIX + base64.b64encode(self._box.encrypt(plain)).decode()

    def unwrap(self, wrapped: str) -> bytes:
        """Return the data key. Raises WrongKey, and ValueError for a text that is not base64."""
        if wrapped.startswith(_PREFIX_OF_AES):
            return self._unwrap_aes(base64.b64decode(wrapped.removeprefix(_PREFIX_OF_AES), validate=True))
        try:
            return self._box.decrypt(base64.b64decode(wrapped.removeprefix(_PREFIX), validate=True))
        except CryptoError as error:
            raise WrongKey("another passphrase wrapped this data key") from error

    def _unwrap_aes(self, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        nonce, text = sealed[:_NONCE_BYTES_OF_AES], sealed[_NONCE_BYTES_OF_AES:]
        try:
            return self._aes.decrypt(nonce, text, None)
        except InvalidTag as error:
            raise WrongKey("another passphrase wrapped this data key") from error

    @functools.cached_property
    def _aes(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(_derived(self._passphrase, b"herdsman/stack-secrets/1"))


def _derived(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)
