"""The bodies of error responses become typed errors."""

from __future__ import annotations

import json

import pytest

from kubeapi import errors
from kubeapi.errors import Cause, error_of_response, error_of_status


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (418, "Teapot", errors.ApiError),
    ],
)
def test_status_and_reason_choose_the_type(code: int, reason: str, kind: type[errors.ApiError]) -> None:
    error = error_of_status({"kind": "Status", "code": code, "reason": reason, "message": "why"})
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (code, reason, "why")
    assert str(error) == f"{reason} ({code}): why"


def test_causes_name_fields_and_reasons() -> None:
    body = {
        "kind": "Status",
        "reason": "Invalid",
        "message": "is invalid",
        "details": {
            "causes": [
                {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.image"},
                {"message": "bare"},
            ]
        },
    }
    error = error_of_response(422, {}, json.dumps(body).encode())
    assert error.causes == (Cause("spec.image", "Required value", "FieldValueRequired"), Cause("", "bare", ""))


def test_retry_after_comes_from_the_header_or_the_details() -> None:
    body = json.dumps({"kind": "Status", "details": {"retryAfterSeconds": 7}}).encode()
    assert error_of_response(429, {"Retry-After": "2"}, body).retry_after_s == 2.0
    assert error_of_response(429, {}, body).retry_after_s == 7.0
    assert error_of_response(429, {"Retry-After": "Sat, 21 Nov 2026 10:00:00 GMT"}, b"").retry_after_s is None


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b"[1, 2]", b"{}", b"\xff\xfe", b"x" * 10_000])
def test_a_body_that_is_no_status_still_gives_a_readable_error(body: bytes) -> None:
    error = error_of_response(502, {}, body)
    assert isinstance(error, errors.ServerError)
    assert error.status == 502
    assert 0 < len(error.message) <= 500


def test_one_except_catches_them_all() -> None:
    assert issubclass(errors.KindNotServed, errors.NotFound)
    assert issubclass(errors.Unreachable, errors.ApiError)
    assert issubclass(errors.ApiError, errors.KubeError)
    assert issubclass(errors.ConfigInvalid, errors.KubeError)
