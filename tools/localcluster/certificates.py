"""Makes the certificates of a local cluster, with separate authorities for the API, etcd and front proxies.

etcd accepts every client whose certificate its authority signed, and the API's authority also signs
CertificateSigningRequests, so etcd needs another one. `cluster` calls `ensure` and `issue_client`.
"""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tools.localcluster.layout import write_private

SERVICE_NETWORK = "10.96.0.0/16"
_VALID_FOR = datetime.timedelta(days=3650)
_BACKDATED = datetime.timedelta(hours=1)
"""Certificates are valid from this time before their making, for machines whose clock is slightly behind."""

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_API_NAMES = (
    *_LOOPBACK_NAMES,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "10.96.0.1",
)
ADMIN = "admin"
FRONT_PROXY = "front-proxy"
CLIENTS: dict[str, tuple[str, Sequence[str]]] = {
    # User names and groups of Kubernetes' bootstrap role bindings.
    ADMIN: ("herdsman-admin", ("system:masters",)),
    "controller-manager": ("system:kube-controller-manager", ()),
    "scheduler": ("system:kube-scheduler", ()),
    "kubelet-client": ("kube-apiserver-kubelet-client", ("system:masters",)),
}
_PAIRS = ("ca", "server", "etcd-ca", "etcd", "etcd-client", "front-proxy-ca", "front-proxy", *CLIENTS)
FILES: tuple[str, ...] = (
    *(f"{name}.{ending}" for name in _PAIRS for ending in ("crt", "key")),
    "service-accounts.key",
    "service-accounts.pub",
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: str
    key: str


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure(directory: Path) -> bool:
    """Write FILES to the directory, all or none; return whether anything was made.

    An incomplete set of files is replaced.
    """
    if all((directory / name).is_file() for name in FILES):
        return False
    draft = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    authority = _new_authority("herdsman-cluster")
    store_authority = _new_authority("herdsman-cluster-etcd")
    _write(draft, "ca", _pair(authority.certificate, authority.key))
    _write(draft, "etcd-ca", _pair(store_authority.certificate, store_authority.key))
    # Aggregated API servers trust this client certificate: its holder may set the user of a forwarded request.
    front_authority = _new_authority("herdsman-cluster-front-proxy")
    _write(draft, "front-proxy-ca", _pair(front_authority.certificate, front_authority.key))
    _write(draft, "front-proxy", _issue(front_authority, FRONT_PROXY, client=True))
    _write(draft, "server", _issue(authority, "kube-apiserver", names=_API_NAMES, server=True))
    _write(draft, "etcd", _issue(store_authority, "etcd", names=_LOOPBACK_NAMES, server=True, client=True))
    _write(draft, "etcd-client", _issue(store_authority, "kube-apiserver", client=True))
    for file, (user, groups) in CLIENTS.items():
        _write(draft, file, _issue(authority, user, groups=groups, client=True))
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(draft / "service-accounts.key", _key_pem(key))
    write_private(
        draft / "service-accounts.pub",
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    )
    # Another version of Herdsman made an incomplete set; no file of it is kept.
    shutil.rmtree(directory, ignore_errors=True)
    draft.rename(directory)
    return True


def issue_client(directory: Path, *, user: str, groups: Sequence[str] = ()) -> Pair:
    """Return a new client certificate of the API for another user, for example one with few rights."""
    certificate = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return _issue(_Authority(certificate, key), user, groups=groups, client=True)


def read(directory: Path, name: str) -> Pair:
    """Return a pair that `ensure` wrote."""
    return Pair(
        (directory / f"{name}.crt").read_text(encoding="utf-8"),
        (directory / f"{name}.key").read_text(encoding="utf-8"),
    )


def _new_authority(name: str) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name, ())
    builder = _builder(subject, subject, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _issue(
    authority: _Authority,
    user: str,
    *,
    groups: Sequence[str] = (),
    names: Sequence[str] = (),
    server: bool = False,
    client: bool = False,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(user, groups), authority.certificate.subject, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * server + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
        )
    return _pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALID_FOR)
    )


def _subject(user: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), _key_pem(key))


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    # SEC 1 and not PKCS 8, because all components read it, both as a certificate's key and as a service account key.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()


def _write(directory: Path, name: str, pair: Pair) -> None:
    write_private(directory / f"{name}.crt", pair.certificate)
    write_private(directory / f"{name}.key", pair.key)
