"""Answers one ConversionReview of apiextensions.k8s.io/v1. Pure; called by `server`.

An invalid review is answered with a failure, which the API server returns to the client that requested the object.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import structlog

from kubeapi.json_types import Json
from program.dialects.kserve.conversion import HUB, KINDS, SPOKE, from_hub, to_hub

log = structlog.get_logger(__name__)

API_VERSION = "apiextensions.k8s.io/v1"
_CONVERT: dict[str, Callable[[Json], Json]] = {HUB: to_hub, SPOKE: from_hub}


class ReviewInvalid(ValueError):
    """The request is not a ConversionReview, so it gets no response of that kind."""


def answer(body: bytes) -> bytes:
    """Convert all objects of a review, or return the reason why none is converted. Raises ReviewInvalid."""
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReviewInvalid("the body is not JSON") from error
    request = review.get("request") if isinstance(review, dict) else None
    uid = request.get("uid") if isinstance(request, dict) else None
    if not isinstance(request, dict) or not isinstance(uid, str) or review.get("kind") != "ConversionReview":
        raise ReviewInvalid("the body is not a ConversionReview with a request")
    try:
        objects = _converted(request)
        response: Json = {"uid": uid, "convertedObjects": objects, "result": {"status": "Success"}}
    except _Refused as refused:
        response = {"uid": uid, "result": {"status": "Failure", "message": str(refused)}}
    except Exception as error:
        # No content of one object may prevent the conversion of others. A traceback would show the object, which may
        # contain data that does not belong in logs.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.warning("A conversion failed", error=type(error).__name__, at=f"{frame.name}:{frame.lineno}")
        response = {
            "uid": uid,
            "result": {"status": "Failure", "message": f"cannot be converted: {type(error).__name__}"},
        }
    return json.dumps({"apiVersion": API_VERSION, "kind": "ConversionReview", "response": response}).encode()


class _Refused(Exception):
    """The reason why no object is converted."""


def _converted(request: Json) -> list[Json]:
    desired = request.get("desiredAPIVersion")
    convert = _CONVERT.get(desired) if isinstance(desired, str) else None
    if convert is None:
        raise _Refused(f"version `{str(desired)[:64]}` is not one of {', '.join(_CONVERT)}")
    objects = request.get("objects")
    if not isinstance(objects, list):
        raise _Refused("request.objects is not a list")
    return [_one(obj, convert) for obj in objects]


def _one(obj: Any, convert: Callable[[Json], Json]) -> Json:
    if not isinstance(obj, dict):
        raise _Refused("an item of request.objects is not an object")
    version, kind = obj.get("apiVersion"), obj.get("kind")
    # A list's items are passed one by one; the API server names list kinds only in the list's metadata.
    if version not in _CONVERT or kind not in KINDS:
        raise _Refused(f"`{str(version)[:64]} {str(kind)[:64]}` is not converted by this webhook")
    if not isinstance(obj.get("metadata", {}), dict):
        raise _Refused("metadata is not an object")
    return convert(obj)
