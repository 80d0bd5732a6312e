"""The server's side of AWS Signature Version 4: compute the signature again from the secret and compare.

It follows "Authenticating Requests: Using the Authorization Header" of the Amazon S3 API reference for S3 without a
body, and "Create a signed AWS API request" of the IAM User Guide for other services.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<date>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, ?"
    r"SignedHeaders=(?P<signed>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_REQUIRED = {"host", "x-amz-date", "x-amz-content-sha256"}


def refusal(
    method: str,
    target: str,
    headers: Mapping[str, str],
    *,
    key_id: str,
    secret: str,
    region: str,
    token: str = "",
    service: str = "s3",
    body: bytes = b"",
) -> str | None:
    """Return why AWS would refuse the request, or None if its signature is right.

    `target` is the path as it was sent. S3 wants each path segment encoded once, other services twice, and all want
    every `x-amz-` header signed.
    """
    sent = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    match = _AUTHORIZATION.fullmatch(sent.get("authorization", ""))
    if match is None:
        return f"no signature: {sent.get('authorization')!r}"
    if (match["key"], match["region"], match["service"]) != (key_id, region, service):
        return f"signed for {match['key']}, {match['region']}, {match['service']}"
    signed = match["signed"].split(";")
    own = {name for name in sent if name.startswith("x-amz-")}
    required = _REQUIRED if service == "s3" else _REQUIRED - {"x-amz-content-sha256"}
    if missing := (required | own) - set(signed):
        return f"not signed: {sorted(missing)}"
    if token and sent.get("x-amz-security-token") != token:
        return "another session token"
    digest = hashlib.sha256(body).hexdigest()
    if service == "s3" and sent["x-amz-content-sha256"] != digest:
        return "another body"
    time = sent["x-amz-date"]
    if not time.startswith(match["date"]):
        return "two dates"
    parts = urlsplit(target)
    request = "\n".join(
        (
            method,
            quote(unquote(parts.path) if service == "s3" else parts.path, safe="/-_.~"),
            parts.query,
            *(f"{name}:{sent.get(name, '')}" for name in signed),
            "",
            match["signed"],
            digest,
        )
    )
    scope = f"{match['date']}/{region}/{service}/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in (match["date"], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    right = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return None if hmac.compare_digest(right, match["signature"]) else "the signature does not match"
