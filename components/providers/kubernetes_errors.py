"""Writes messages for the API server's refusals: the request, the wrong field, the reason, the advice. Pure.

Called by `components.providers.kubernetes`. Uses the types of `kubeapi.errors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from kubeapi import errors

_NOT_TYPED = "failed to create typed patch object"
_TYPED_CAUSE = re.compile(r"(\.[^\s:]+): ([^:\n][^\n]*)")
_IMMUTABLE = re.compile(
    r"immutable|may not (?:be )?change|cannot (?:be )?change|can not (?:be )?change|can't (?:be )?change"
    r"|must not (?:be )?change|updates to .* are forbidden|may not be modified|cannot be modified"
    r"|cannot enable \w+ after|cannot remove \w+ after"
    # A headless Service that would get an address.
    r"|may not be set to 'None' for",
    re.IGNORECASE,
)
_API_BY_WEBHOOK = frozenset({"vleaderworkerset.kb.io"})
"""Webhooks that validate a kind as its API does. Refusals of other webhooks are rules of the cluster, which a new
object must not circumvent."""
_DENIED = re.compile(r'admission webhook "(?P<webhook>[^"]+)" denied the request: (?P<told>.*)', re.DOTALL)
_FIELD_ERROR = r"[A-Za-z][\w.\[\]]*: (?:Invalid value|Required value|Forbidden|Duplicate value|Unsupported value): "
_TOLD_CAUSE = re.compile(rf"(?P<field>[A-Za-z][\w.\[\]]*): (?P<why>.+?)(?=, {_FIELD_ERROR}|$)", re.DOTALL)
_MIN_STRUCK = 3
STRUCK = "[secret]"


class Code(Enum):
    """The class of a failure on the wire. None of them makes the engine doubt its state (docs/adr/0004)."""

    INVALID_ARGUMENT = "invalid argument"
    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    PERMISSION_DENIED = "permission denied"
    UNAUTHENTICATED = "unauthenticated"
    RESOURCE_EXHAUSTED = "resource exhausted"
    FAILED_PRECONDITION = "failed precondition"
    ABORTED = "aborted"
    UNAVAILABLE = "unavailable"
    UNIMPLEMENTED = "unimplemented"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline exceeded"


class Refused(Exception):
    """A call of the engine failed; the message is for the person who reads the engine's output."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def refusal(error: errors.ApiError, asked: str, secrets: Iterable[str] = ()) -> Refused:
    """Return the refusal for an API error. `asked` is the request in words: "create Deployment `prod/llama`"."""
    code, advice = _class_of(error)
    lines = [f"could not {asked}: {_headline(error)}"]
    lines += [
        f"  - {field}: {_first_line(why)}" if field else f"  - {_first_line(why)}" for field, why in causes(error)
    ]
    lines.append(advice)
    return Refused(code, struck("\n".join(lines), secrets))


def struck(text: str, secrets: Iterable[str]) -> str:
    """Replace secret values in a message. Values under 3 characters stay, because they occur in many words."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _MIN_STRUCK:
            text = text.replace(secret, STRUCK)
    return text


def causes(error: errors.ApiError) -> list[tuple[str, str]]:
    """Return (field, reason) for each cause of an error, each once."""
    found = [(cause.field, cause.message) for cause in error.causes]
    if not found and _NOT_TYPED in error.message:
        found = [(field.lstrip("."), why) for field, why in _TYPED_CAUSE.findall(error.message)]
    return list(dict.fromkeys(found))


def immutable_fields(error: errors.ApiError) -> tuple[str, ...]:
    """Return the fields whose change needs a new object; empty if the error has any other cause.

    With another fault, the new object would be refused too, after the old one was deleted.
    """
    if isinstance(error, errors.Forbidden):
        found = _causes_of_webhook(error)
    else:
        found = causes(error) if isinstance(error, errors.Invalid) else []
    if not found or not all(_IMMUTABLE.search(why) for _, why in found):
        return ()
    return tuple(field for field, _ in found)


def _causes_of_webhook(error: errors.Forbidden) -> list[tuple[str, str]]:
    """Return the causes that a kind's own webhook reports. It answers 403, with the causes in the text only."""
    denied = _DENIED.search(error.message)
    if denied is None or denied["webhook"] not in _API_BY_WEBHOOK:
        return []
    told = denied["told"].strip()
    told = told[1:-1] if told.startswith("[") and told.endswith("]") else told
    found = [(each["field"], each["why"]) for each in _TOLD_CAUSE.finditer(told)]
    # This webhook writes Go's field names, which differ from those of the object.
    return [(field.replace(".SubGroupPolicy.", ".subGroupPolicy."), why) for field, why in found]


def role_is_late(error: errors.NotFound, obj: Mapping[str, Any]) -> bool:
    """Return whether a binding was refused because the API server does not know its role yet.

    If the client may not bind every role, the API server reads the role from a cache that may lag behind.
    """
    if obj["kind"] not in ("RoleBinding", "ClusterRoleBinding") or error.message.startswith("namespaces "):
        return False
    return f'"{obj["roleRef"]["name"]}" not found' in error.message


def about_uid(error: errors.ApiError) -> bool:
    """Return whether the server refuses because the object of this name is gone or another one."""
    if isinstance(error, errors.Invalid):
        return any(cause.field == "metadata.uid" for cause in error.causes)
    return isinstance(error, errors.Conflict) and "uid mismatch" in error.message


def _headline(error: errors.ApiError) -> str:
    if causes(error):
        return "the API server refused it as invalid"
    return _first_line(error.message)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].rstrip()


def _class_of(error: errors.ApiError) -> tuple[Code, str]:
    text = error.message
    if isinstance(error, errors.Invalid | errors.BadRequest) or _NOT_TYPED in text:
        return Code.INVALID_ARGUMENT, "Correct the fields named above."
    if isinstance(error, errors.KindNotServed):
        return Code.NOT_FOUND, "Check apiVersion and kind, or install the CustomResourceDefinition first."
    if isinstance(error, errors.NotFound):
        if text.startswith("namespaces "):
            return Code.NOT_FOUND, "Create the namespace first, and let this resource depend on it."
        return Code.NOT_FOUND, "Another client deleted it in the meantime; run again."
    if isinstance(error, errors.Unauthorized):
        return Code.UNAUTHENTICATED, "The credentials were refused: renew the kubeconfig or the service account token."
    if isinstance(error, errors.Forbidden):
        return Code.PERMISSION_DENIED, _forbidden_advice(text)
    if isinstance(error, errors.AlreadyExists):
        return Code.ALREADY_EXISTS, "Choose another name, or delete the existing object."
    if isinstance(error, errors.Conflict):
        return Code.ABORTED, "Another client changed it at the same time; run again."
    if isinstance(error, errors.TooManyRequests):
        return Code.RESOURCE_EXHAUSTED, "The API server is overloaded; run again later."
    if isinstance(error, errors.Unreachable):
        return Code.UNAVAILABLE, "The request may have taken effect; you can safely run again."
    return Code.UNAVAILABLE, "The API server failed; you can safely run again."


def _forbidden_advice(text: str) -> str:
    if "exceeded quota" in text:
        return "Raise the ResourceQuota, or request less."
    if "being terminated" in text:
        return "The namespace is being deleted; wait for the end of its deletion and create it again."
    if "cannot " in text and " resource " in text:
        return "Grant this verb on this resource to the user named above by RBAC."
    return "An admission rule of the cluster refuses it; ask the administrator of the cluster."
