"""What the container that fetches models knows of its stores: keys by reference, endpoints, trusted certificates. Pure.

No Secret is ever read. Its keys are referred to, each as optional, since which of them it holds is not known here; and
what KServe reads from a Secret's annotations is read from those of the pod's ServiceAccount.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kubeapi import kinds
from program.desired.base import JsonObject
from program.desired.facts import Problem
from program.dialects.kserve.model_address import Scheme
from program.dialects.kserve.subject import Subject

SECRET_NAME = "serving.kserve.io/secretName"  # noqa: S105 - the name of an annotation
"""On a service: the Secret with the keys of its model's store."""
DEFAULT_ACCOUNT = "default"

_KEYS: dict[Scheme, tuple[str, ...]] = {"hf": ("HF_TOKEN",), "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
_PREFIX = "serving.kserve.io/s3-"
_PLAIN = {
    f"{_PREFIX}verifyssl": "S3_VERIFY_SSL",
    f"{_PREFIX}region": "AWS_DEFAULT_REGION",
    f"{_PREFIX}useanoncredential": "awsAnonymousCredential",
    f"{_PREFIX}usevirtualbucket": "S3_USER_VIRTUAL_BUCKET",
    f"{_PREFIX}useaccelerate": "S3_USE_ACCELERATE",
}
_NOT_FOR_STORES = re.compile(r".*-(dockercfg|token)-[a-z0-9]+", re.ASCII)
"""Secrets that clusters put onto accounts by themselves."""


def credentials(subject: Subject, schemes: Iterable[Scheme], account: str) -> tuple[JsonObject, ...]:
    """Give the variables with the keys and endpoints of all stores in question, for pods of an account."""
    wanted = tuple(dict.fromkeys(scheme for scheme in schemes if scheme in _KEYS))
    if not wanted:
        return ()
    found = _account(subject, account)
    secret = subject.annotations.get(SECRET_NAME) or next(iter(_secrets(found)), "")
    variables: list[JsonObject] = []
    for scheme in wanted:
        if secret:
            variables.extend(
                {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
                for key in _KEYS[scheme]
            )
        if scheme == "s3":
            variables.extend(_endpoint((found.get("metadata") or {}).get("annotations") or {}))
    return tuple(variables)


def ambiguous_credentials(subject: Subject, account: str) -> Problem | None:
    """Say that an account has several secrets, of which only the first is looked into."""
    if subject.annotations.get(SECRET_NAME):
        return None
    names = _secrets(_account(subject, account))
    if len(names) < 2:
        return None
    return Problem(
        reason="NotHonoured",
        message=f"ServiceAccount {account or DEFAULT_ACCOUNT} has several secrets ({', '.join(names)}), and only "
        f"{names[0]} is used for the model's store; name the right one in annotation {SECRET_NAME}",
        field="spec.template.serviceAccountName",
        terminal=True,
    )


def _account(subject: Subject, account: str) -> JsonObject:
    return subject.look(kinds.SERVICE_ACCOUNTS, subject.namespace, account or DEFAULT_ACCOUNT) or {}


def _secrets(account: JsonObject) -> tuple[str, ...]:
    names = (str(secret.get("name") or "") for secret in account.get("secrets") or ())
    return tuple(name for name in names if name and not _NOT_FOR_STORES.fullmatch(name))


def _endpoint(annotations: Mapping[str, str]) -> list[JsonObject]:
    variables: list[JsonObject] = []
    endpoint, plain = annotations.get(f"{_PREFIX}endpoint", ""), annotations.get(f"{_PREFIX}usehttps", "")
    if plain:
        variables.append({"name": "S3_USE_HTTPS", "value": plain})
    if endpoint:
        scheme = "http" if plain == "0" else "https"
        variables.append({"name": "S3_ENDPOINT", "value": endpoint})
        variables.append({"name": "AWS_ENDPOINT_URL", "value": f"{scheme}://{endpoint}"})
    variables.extend(
        {"name": variable, "value": annotations[name]} for name, variable in _PLAIN.items() if annotations.get(name)
    )
    return variables
