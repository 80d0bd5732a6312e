"""Signatures of AWS, compared with the vectors that AWS publishes, and the domains of its partitions."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from agent.server.models.source_access import Credentials
from agent.sources.sigv4 import EMPTY_SHA256, SigV4Signer, domain_of

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
HOST = "example.amazonaws.com"
FORM = {"content-type": "application/x-www-form-urlencoded"}


def signer(service: str = "service", region: str = "us-east-1", token: str = "") -> SigV4Signer:
    return SigV4Signer("AKIDEXAMPLE", SECRET, token, region, service, lambda: datetime(2015, 8, 30, 12, 36, tzinfo=UTC))


@pytest.mark.parametrize(
    ("method", "target", "body", "signed", "signature"),
    [
        ("GET", "/", b"", {}, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", b"", {}, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            b"",
            {},
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        ("GET", "/\u1234", b"", {}, "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
        ("POST", "/", b"Param1=value1", FORM, "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"),
        (
            "GET",
            "/",
            b"",
            {"my-header1": "  value1", "my-header2": '  "a   b   c"'},
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
    ],
)
def test_the_vectors_of_aws_come_out(
    method: str, target: str, body: bytes, signed: dict[str, str], signature: str
) -> None:
    """The names in AWS's suite: get-vanilla, post-vanilla, get-vanilla-query-order-key-case, get-utf8,
    post-x-www-form-urlencoded, get-header-value-trim."""
    digest = hashlib.sha256(body).hexdigest()
    headers = signer().headers(method, HOST, target, body_sha256=digest, signed=signed)
    assert headers["x-amz-date"] == "20150830T123600Z"
    assert headers["Authorization"].endswith(f"Signature={signature}")
    assert "Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request" in headers["Authorization"]


def test_only_s3_signs_a_path_as_it_is_and_sends_the_digest_of_the_body() -> None:
    encoded = signer("bedrock").headers("POST", HOST, "/model/a%3A0/converse")
    assert encoded["Authorization"] != signer("bedrock").headers("POST", HOST, "/model/a:0/converse")["Authorization"]
    assert "x-amz-content-sha256" not in encoded
    assert signer("s3").headers("GET", HOST, "/a%3A0")["x-amz-content-sha256"] == EMPTY_SHA256


def test_a_session_token_is_signed_and_nothing_secret_is_shown() -> None:
    headers = signer(token="session").headers("GET", HOST, "/")
    assert "SignedHeaders=host;x-amz-date;x-amz-security-token," in headers["Authorization"]
    assert SECRET not in repr(signer(token="session"))
    assert "session" not in repr(signer(token="session")).replace("session_token", "")


@pytest.mark.parametrize(
    ("region", "domain"),
    [
        ("us-east-1", "amazonaws.com"),
        ("us-gov-west-1", "amazonaws.com"),
        ("cn-northwest-1", "amazonaws.com.cn"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
    ],
)
def test_a_region_has_the_domain_of_its_partition(region: str, domain: str) -> None:
    assert domain_of(region) == domain
    assert Credentials(region=region).s3_address("b", "k").sent == f"https://s3.{region}.{domain}/b/k"
