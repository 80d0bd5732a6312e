"""Issues the certificates of pods outside the engine, whose state must contain no key; notices deleted ones.

The controller calls `ensure` in each pass of a service that needs one. The loop may create and patch Secrets, but not
get, list or watch them (docs/adr/0028). So it reads the metadata of its Secrets from the answers to its writes, and
does not keep the key. `CertificateWatch` looks for deleted Secrets, one at a time, by a patch that changes nothing.
"""

from __future__ import annotations

import base64
import datetime
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from automation.cache.secret_metadata import secret_metadata
from automation.certificates.files import LIFETIME, serving_files
from components import naming
from components.naming import owner_reference
from kubeapi import kinds
from kubeapi.client import APPLY_PATCH, KubeClient
from kubeapi.errors import AlreadyExists, ApiError, BadRequest, Conflict, Forbidden, Invalid
from kubeapi.json_types import Json
from kubeapi.rest import METADATA
from program.desired.facts import Problem
from program.desired.keys import Owner, ServiceKey
from program.desired.service import DesiredService
from program.desired.workloads import Certificate

log = structlog.get_logger(__name__)

ANNOTATION_NAMES = "herdsman.dev/certificate-names"
"""The annotation of Herdsman's Secrets with the names and addresses of the certificate, separated by commas."""
ANNOTATION_RENEWAL = "herdsman.dev/certificate-renewal"
"""The annotation of Herdsman's Secrets with the time at which the certificate is replaced, RFC 3339."""
PEER_EXPIRY = "certificates.kserve.io/expiration"
"""The same annotation of KServe's Secrets."""

RENEW_AFTER = LIFETIME * 2 / 3
PEER_KEEPS = datetime.timedelta(days=8 * 365)
"""The lifetime of KServe's certificates without the annotation."""
LOOK_EVERY = datetime.timedelta(minutes=10)
"""A pass checks the Secret again after this time; `CertificateWatch` checks it more often."""
REASON_FAILED = "CertificateFailed"
REASON_FOREIGN = "CertificateNotOurs"
TLS = "kubernetes.io/tls"


@dataclass(frozen=True)
class _Issued:
    """The known facts of an existing Secret."""

    secret: str
    names: frozenset[str] | None
    """None for a Secret of another controller, whose names are not known."""
    renewal: datetime.datetime | None
    """None for a Secret that Herdsman does not replace."""
    seen: datetime.datetime

    def serves(self, wanted: frozenset[str], now: datetime.datetime) -> bool:
        """Return whether the Secret is valid for the wanted names and need not be replaced."""
        if self.renewal is None:
            return True
        return now < self.renewal and (self.names is None or wanted <= self.names)


class _Foreign(Exception):
    """The Secret belongs to another object, which the message names."""


class CertificateIssuer:
    """Keeps the certificate Secret of each service. Thread-safe for different services."""

    def __init__(
        self,
        client: KubeClient,
        *,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._issued: dict[ServiceKey, _Issued] = {}

    def ensure(self, key: ServiceKey, cr: Json, certificate: Certificate, desired: DesiredService) -> Problem | None:
        """Create or replace the Secret so that it is valid for the service's names; None on success.

        One request for a service after a start, one every `LOOK_EVERY` at most after that. A Secret that the user made,
        and one that KServe made for the same service, are left as they are; the latter is replaced when it is due.
        Raises ApiError when the API server does not answer.
        """
        now, wanted = self._clock(), frozenset((*certificate.dns_names, *certificate.ip_addresses))
        with self._lock:
            known = self._issued.get(key)
        lately = known is not None and known.secret == certificate.secret and now - known.seen < LOOK_EVERY
        if known is not None and lately and known.serves(wanted, now):
            return None
        owner = desired.owner or _owner(cr)
        try:
            issued = self._stand(key, certificate, owner, wanted, now)
        except _Foreign as foreign:
            return _problem(REASON_FOREIGN, certificate, f"belongs to {foreign}; delete it or give it another name")
        except Forbidden:
            why = "may not be written; grant the loop create and patch on Secrets (docs/install/rbac.yaml)"
            return _problem(REASON_FAILED, certificate, why)
        except (Invalid, BadRequest, Conflict) as error:
            # The messages of errors may repeat the request, which contains the key.
            return _problem(REASON_FAILED, certificate, f"was refused by the API server ({error.reason})")
        except ValueError as error:
            return _problem(REASON_FAILED, certificate, str(error))
        with self._lock:
            self._issued[key] = issued
        return None

    def known(self) -> tuple[ServiceKey, ...]:
        """List the services whose Secret existed at its last check."""
        with self._lock:
            return tuple(sorted(self._issued))

    def is_gone(self, key: ServiceKey) -> bool:
        """Return whether a service's Secret was deleted; the next `ensure` then makes it again. Raises ApiError."""
        with self._lock:
            known = self._issued.get(key)
        if known is None or secret_metadata(self._client, key.namespace, known.secret) is not None:
            return False
        self.drop_service(key)
        return True

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service. Its Secret is deleted with the custom resource that owns it."""
        with self._lock:
            self._issued.pop(key, None)

    def _stand(
        self, key: ServiceKey, certificate: Certificate, owner: Owner, wanted: frozenset[str], now: datetime.datetime
    ) -> _Issued:
        """Check the Secret; create a missing one, and replace one that is not valid."""
        metadata = secret_metadata(self._client, key.namespace, certificate.secret)
        if metadata is None:
            try:
                return self._create(key, certificate, owner, now)
            except AlreadyExists:
                metadata = secret_metadata(self._client, key.namespace, certificate.secret)
                if metadata is None:
                    raise
        found = replace(_read(metadata, owner, now), secret=certificate.secret)
        return found if found.serves(wanted, now) else self._replace(key, certificate, owner, metadata, now)

    def _create(self, key: ServiceKey, certificate: Certificate, owner: Owner, now: datetime.datetime) -> _Issued:
        body, issued = _secret(key, certificate, owner, now)
        query = {"fieldManager": naming.FIELD_MANAGER}
        self._client.request("POST", kinds.SECRETS.path(key.namespace), query=query, body=body, accept=METADATA)
        log.info("Issued a certificate", service=str(key), secret=certificate.secret, renewal=issued.renewal)
        return issued

    def _replace(
        self, key: ServiceKey, certificate: Certificate, owner: Owner, live: Json, now: datetime.datetime
    ) -> _Issued:
        body, issued = _secret(key, certificate, owner, now)
        # Only the object that was read, so that another owner's new Secret is never overwritten.
        body["metadata"]["uid"] = live["uid"]
        self._client.request(
            "PATCH",
            kinds.SECRETS.path(key.namespace, certificate.secret),
            query={"fieldManager": naming.FIELD_MANAGER, "force": "true"},
            body=body,
            content_type=APPLY_PATCH,
            accept=METADATA,
        )
        log.info("Replaced a certificate", service=str(key), secret=certificate.secret, renewal=issued.renewal)
        return issued


def _read(metadata: Mapping[str, Any], owner: Owner, now: datetime.datetime) -> _Issued:
    """Parse the metadata of a Secret. Raises _Foreign when another object controls it."""
    controller = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    annotations = metadata.get("annotations") or {}
    name = str(metadata.get("name", ""))
    if controller is None:
        return _Issued(name, None, None, now)
    if controller.get("uid") != owner.uid:
        raise _Foreign(f"{controller.get('kind')} `{controller.get('name')}`")
    if ANNOTATION_NAMES in annotations:
        names = frozenset(str(annotations[ANNOTATION_NAMES]).split(","))
        return _Issued(name, names, _time(annotations.get(ANNOTATION_RENEWAL)) or now, now)
    made = _time(metadata.get("creationTimestamp")) or now
    return _Issued(name, None, _time(annotations.get(PEER_EXPIRY)) or made + PEER_KEEPS, now)


def _secret(key: ServiceKey, certificate: Certificate, owner: Owner, now: datetime.datetime) -> tuple[Json, _Issued]:
    names: Sequence[str] = (*certificate.dns_names, *certificate.ip_addresses)
    files = serving_files(certificate.dns_names, certificate.ip_addresses, now=now)
    renewal = (now + RENEW_AFTER).replace(microsecond=0)
    metadata = {
        "name": certificate.secret,
        "namespace": key.namespace,
        "labels": certificate.labels,
        "annotations": {
            ANNOTATION_NAMES: ",".join(names),
            **dict.fromkeys((ANNOTATION_RENEWAL, *certificate.renewal_annotations), renewal.isoformat()),
        },
        "ownerReferences": [owner_reference(owner)],
    }
    data = {file: base64.b64encode(text).decode() for file, text in files.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "type": TLS, "metadata": metadata, "data": data}
    return body, _Issued(certificate.secret, frozenset(names), renewal, now)


def _owner(cr: Json) -> Owner:
    metadata = cr["metadata"]
    return Owner(
        api_version=str(cr.get("apiVersion", "")),
        kind=str(cr.get("kind", "")),
        name=metadata["name"],
        uid=metadata["uid"],
    )


def _time(text: object) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def _problem(reason: str, certificate: Certificate, why: str) -> Problem:
    return Problem(reason=reason, message=f"Secret `{certificate.secret}`, the certificate of the pods, {why}")


ROUND_S = 40.0
"""Seconds between two checks of one Secret."""
TICK_S = 1.0
MOST_PER_TICK = 25
"""Checks per second. With more than a thousand Secrets the time between two checks of one grows."""


class CertificateWatch:
    """Checks all Secrets of the issuer periodically, in a separate thread."""

    def __init__(
        self,
        issuer: CertificateIssuer,
        *,
        requeue: Callable[[ServiceKey, float], None],
        every_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._requeue = requeue
        self._every_s = every_s
        self._clock = clock
        self._looked: dict[ServiceKey, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further check."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def check_all(self) -> None:
        """Check the Secrets that are due, those with the oldest check first."""
        now, known = self._clock(), self._issuer.known()
        self._looked = {key: self._looked.get(key, now) for key in known}
        due = [key for key in known if now - self._looked[key] >= self._every_s]
        for key in sorted(due, key=self._looked.__getitem__)[:MOST_PER_TICK]:
            self._looked[key] = now
            self._check(key)

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            self.check_all()

    def _check(self, key: ServiceKey) -> None:
        try:
            if self._issuer.is_gone(key):
                log.info("A service has no certificate", service=str(key))
                self._requeue(key, 0.0)
        except ApiError:
            pass  # the next check tries again, and passes report the error
        except Exception:
            log.exception("Failed to check a certificate", service=str(key))
