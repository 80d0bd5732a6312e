"""Makes serving certificates with their keys, and the TLS contexts of servers that use them.

Called by `issuing` for the pods of services, by the conversion webhook, and by the external metrics API. Each
certificate has a separate authority. The authority's key is never stored, so it signs nothing else.
"""

from __future__ import annotations

import datetime
import ipaddress
import pathlib
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

# cryptography is imported where a certificate is made: most loops make none, and its x509 takes 4 MB.

LIFETIME = datetime.timedelta(days=365)
_BACKDATED = datetime.timedelta(hours=1)
"""A certificate is valid from this time before its issue, for clients whose clock is behind."""
_LONGEST_COMMON_NAME = 64


def serving_files(
    dns_names: Sequence[str],
    ip_addresses: Sequence[str],
    *,
    now: datetime.datetime,
    lifetime: datetime.timedelta = LIFETIME,
) -> dict[str, bytes]:
    """Make the files of a Secret of type kubernetes.io/tls: `tls.crt`, `tls.key` and `ca.crt`, all PEM.

    The key is P-256, which all TLS libraries support and which costs servers less than RSA. Raises ValueError for an
    invalid address, and without any name and address.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    if not alternatives:
        raise ValueError("a certificate needs a name or an address")
    common = next((name for name in dns_names if len(name) <= _LONGEST_COMMON_NAME), "herdsman")
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _named(f"authority of {common}"[:_LONGEST_COMMON_NAME])
    authority = (
        _draft(issuer, issuer, authority_key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _draft(issuer, _named(common), key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(
            # Both: with mutual TLS the pods of one service show it to each other.
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {
        "tls.crt": certificate.public_bytes(serialization.Encoding.PEM),
        "tls.key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        "ca.crt": authority.public_bytes(serialization.Encoding.PEM),
    }


def _named(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _draft(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def serving_context(files: Mapping[str, bytes]) -> ssl.SSLContext:
    """Make the TLS context of a server from `tls.key` and `tls.crt`.

    The ssl module reads a key only from a file, which is deleted right after that.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as directory:
        chain = pathlib.Path(directory, "chain.pem")
        chain.touch(mode=0o600)
        chain.write_bytes(files["tls.key"] + files["tls.crt"])
        context.load_cert_chain(chain)
    return context
