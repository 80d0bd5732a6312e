"""Credentials of the container that fetches models: keys by reference, endpoints, trusted certificates. Pure.

No value of a Secret is read, and the references to keys are optional. Endpoint and region come from annotations: of the
service, then of the Secret, then of the pod's ServiceAccount, then from the cluster's settings, as in KServe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.facts import Problem, unsupported_field
from program.dialects.kserve import naming
from program.dialects.kserve.parse.source import Scheme
from program.dialects.kserve.parse.store_secrets import ANNOTATIONS_OF_STORES
from program.dialects.kserve.parse.subject import Subject

SECRET_NAME = "serving.kserve.io/secretName"  # noqa: S105 - the name of an annotation
"""On a service: the Secret with the keys of its model's store. Settings may name another annotation for it."""
DEFAULT_ACCOUNT = "default"
BUNDLE = "global-ca-bundle"
"""ConfigMap of a namespace: a copy of the ConfigMap with certificates that the settings name in KServe's namespace."""

_PLAIN = {
    "verifyssl": "S3_VERIFY_SSL",
    "region": "AWS_DEFAULT_REGION",
    "useanoncredential": "awsAnonymousCredential",
    "usevirtualbucket": "S3_USER_VIRTUAL_BUCKET",
    "useaccelerate": "S3_USE_ACCELERATE",
    "cabundle": "AWS_CA_BUNDLE",
}
_NOT_FOR_STORES = re.compile(r".*-(dockercfg|token)-[a-z0-9]+", re.ASCII)
"""Secrets that clusters add to accounts automatically."""


def credentials(subject: Subject, schemes: Iterable[Scheme], account: str) -> tuple[Json, ...]:
    """Return the variables with the keys and endpoints of the stores of `schemes`, for pods of an account."""
    named = subject.settings.credentials
    keys: dict[Scheme, dict[str, str]] = {
        "hf": {"HF_TOKEN": "HF_TOKEN"},
        "s3": {"AWS_ACCESS_KEY_ID": named.access_key, "AWS_SECRET_ACCESS_KEY": named.secret_key},
    }
    wanted = tuple(dict.fromkeys(scheme for scheme in schemes if scheme in keys))
    if not wanted:
        return ()
    secret = _secret(subject, account)
    variables: list[Json] = []
    for scheme in wanted:
        if secret:
            variables.extend(
                {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
                for variable, key in keys[scheme].items()
            )
        if scheme == "s3":
            variables.extend(_endpoint(store_annotations(subject, account)))
    return tuple(variables)


def store_annotations(subject: Subject, account: str) -> dict[str, str]:
    """Return the settings of S3 stores for pods of an account, by the last part of the annotations' names."""
    name = _secret(subject, account)
    secret = subject.look(kinds.SECRETS, subject.namespace, name) if name else None
    said = subject.settings.credentials.s3
    for each in (_account(subject, account), secret or {}, subject.cr):
        said = {**said, **_own_store_annotations((each.get("metadata") or {}).get("annotations") or {})}
    return dict(said)


def certificates(subject: Subject, schemes: Iterable[Scheme], account: str) -> tuple[str, str] | None:
    """Return the ConfigMap with the certificates of stores, and its mount path; None if none is named.

    KServe copies the ConfigMap of the settings to every namespace. A ConfigMap that an annotation names exists already.
    """
    said = store_annotations(subject, account) if "s3" in schemes else {}
    storage = subject.settings.storage
    of_settings = storage.ca_bundle_config_map
    if of_settings and subject.namespace != naming.SYSTEM_NAMESPACE:
        of_settings = BUNDLE
    name = said.get("cabundle-configmap") or of_settings
    file = said.get("cabundle", "")
    return (name, str(PurePosixPath(file).parent) if file else storage.ca_bundle_mount_path) if name else None


def missing_certificates(subject: Subject, schemes: Iterable[Scheme], account: str) -> Problem | None:
    """Return the problem that the namespace lacks the stores' certificates, so that pods that fetch cannot start."""
    name = subject.settings.storage.ca_bundle_config_map
    mounted = certificates(subject, schemes, account)
    if not name or mounted is None or mounted[0] != BUNDLE or subject.namespace == naming.SYSTEM_NAMESPACE:
        return None
    if subject.look(kinds.CONFIG_MAPS, subject.namespace, BUNDLE) is not None:
        return None
    return unsupported_field(
        "spec.model.uri",
        f"the settings name ConfigMap {naming.SYSTEM_NAMESPACE}/{name} for the certificates of stores; copy it into "
        f"namespace {subject.namespace} as ConfigMap {BUNDLE}, or the pods do not start",
    )


def ambiguous_credentials(subject: Subject, account: str) -> Problem | None:
    """Return the problem that an account has several secrets, of which only the first is used."""
    if _named_secret(subject):
        return None
    names = _secrets(_account(subject, account))
    if len(names) < 2:
        return None
    return unsupported_field(
        "spec.template.serviceAccountName",
        f"ServiceAccount {account or DEFAULT_ACCOUNT} has several secrets ({', '.join(names)}), and only "
        f"{names[0]} is used for the model's store; name another one in annotation {SECRET_NAME}",
    )


def _secret(subject: Subject, account: str) -> str:
    """Return the Secret with the keys of the store; empty for none."""
    return _named_secret(subject) or next(iter(_secrets(_account(subject, account))), "")


def _named_secret(subject: Subject) -> str:
    annotation = subject.settings.credentials.secret_annotation
    return subject.annotations.get(annotation) or subject.annotations.get(SECRET_NAME) or ""


def _own_store_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of an S3 store, by the last part of their names."""
    return {
        key.removeprefix(ANNOTATIONS_OF_STORES): value
        for key, value in annotations.items()
        if key.startswith(ANNOTATIONS_OF_STORES)
    }


def _account(subject: Subject, account: str) -> Json:
    return subject.look(kinds.SERVICE_ACCOUNTS, subject.namespace, account or DEFAULT_ACCOUNT) or {}


def _secrets(account: Json) -> tuple[str, ...]:
    secrets = account.get("secrets")
    listed = secrets if isinstance(secrets, list) else []
    names = (str(secret.get("name") or "") for secret in listed if isinstance(secret, dict))
    return tuple(name for name in names if name and not _NOT_FOR_STORES.fullmatch(name))


def _endpoint(said: Mapping[str, str]) -> list[Json]:
    variables: list[Json] = []
    endpoint, secure = said.get("endpoint", "").strip(), said.get("usehttps", "")
    scheme, separator, rest = endpoint.partition("://")
    if separator and scheme.lower() in ("http", "https"):
        # The scheme in the address overrides the annotation for it.
        endpoint, secure = rest, "1" if scheme.lower() == "https" else "0"
    if secure:
        variables.append({"name": "S3_USE_HTTPS", "value": secure})
    if endpoint:
        url = f"{'http' if secure == '0' else 'https'}://{endpoint}"
        variables.append({"name": "S3_ENDPOINT", "value": endpoint})
        variables.append({"name": "AWS_ENDPOINT_URL", "value": url})
    variables.extend({"name": variable, "value": said[name]} for name, variable in _PLAIN.items() if said.get(name))
    return variables
