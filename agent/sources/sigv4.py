"""AWS Signature Version 4 in an `Authorization` header, and the domains of AWS's partitions. Pure apart from the clock.

`agent.server.models.source_access` signs requests to S3, `gateway.routers.provider_requests` those to Amazon Bedrock.
The rules are those of "Create a signed AWS API request" in the AWS IAM User Guide.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
"""The digest of an empty body."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_DOMAINS = (
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
)
"""The domains of the partitions other than `aws` and `aws-us-gov`, by the beginning of their regions' names."""


def domain_of(region: str) -> str:
    """Return the domain of AWS's endpoints in a region. GovCloud (`us-gov-*`) has that of the public partition."""
    return next((domain for beginning, domain in _DOMAINS if region.startswith(beginning)), "amazonaws.com")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class SigV4Signer:
    """Signs requests to one service in one region. The repr contains no secrets."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    region: str
    service: str
    clock: Callable[[], datetime] = _now

    def headers(
        self,
        method: str,
        authority: str,
        target: str,
        *,
        body_sha256: str = EMPTY_SHA256,
        signed: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the headers that sign a request: those in `signed` (names in lower case), those of AWS, the signature.

        `authority` is the header Host, `target` the path and query as they are sent. S3 signs the path as it is. Other
        services encode it once more, so that `%3A` in the target becomes `%253A`.
        """
        path, _, query = target.partition("?")
        now = self.clock()
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        given = {**(signed or {}), "host": authority, "x-amz-date": stamp}
        if self.service == "s3":
            given["x-amz-content-sha256"] = body_sha256
        else:
            path = quote(path, safe="/-_.~")
        if self.session_token:
            given["x-amz-security-token"] = self.session_token
        names = ";".join(sorted(given))
        lines = "".join(f"{name}:{' '.join(given[name].split())}\n" for name in sorted(given))
        request = f"{method}\n{path or '/'}\n{_sorted_query(query)}\n{lines}\n{names}\n{body_sha256}"
        scope = f"{day}/{self.region}/{self.service}/aws4_request"
        to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self.secret_access_key}".encode()
        for word in (day, self.region, self.service, "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        credential = f"{self.access_key_id}/{scope}"
        sent = {name: value for name, value in given.items() if name != "host"}
        return {
            **sent,
            "Authorization": f"{_ALGORITHM} Credential={credential},SignedHeaders={names},Signature={signature}",
        }


def _sorted_query(query: str) -> str:
    pairs = [part if "=" in part else f"{part}=" for part in query.split("&") if part]
    return "&".join(sorted(pairs))
