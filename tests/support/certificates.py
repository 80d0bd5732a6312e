"""A self-signed certificate for the servers of tests on 127.0.0.1."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def own_certificate(directory: Path, *names: str) -> Path:
    """Write a self-signed certificate for 127.0.0.1 with its key, and beside it `ca.crt` without the key.

    `names`: names in DNS that the certificate has, too.
    """
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *(x509.DNSName(each) for each in names)]
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "model server of a test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = directory / "server.pem"
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    (directory / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    return path
