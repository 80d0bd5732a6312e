"""Credentials: signatures of S3 requests compared with the API reference's examples, tokens, and that none is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agent.server.models.source_access import BearerToken, Credentials, S3Signer
from program.desired.web_address import WebAddress

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def test_a_request_is_signed_as_the_api_reference_shows() -> None:
    """The example "GET Bucket Lifecycle" signs the same headers as Herdsman; "GET Object" also signs a Range header."""
    signer = S3Signer(KEY_ID, KEY, "", "us-east-1", clock=lambda: datetime(2013, 5, 24, tzinfo=UTC))
    headers = signer.headers(WebAddress.parse("https://examplebucket.s3.amazonaws.com/?lifecycle"))
    assert headers["x-amz-date"] == "20130524T000000Z"
    assert headers["Authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date,"
        "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )
    listed = signer.headers(WebAddress.parse("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J"))
    assert listed["Authorization"].endswith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")


def test_a_session_token_is_sent_and_signed() -> None:
    headers = S3Signer(KEY_ID, KEY, "session", "eu-central-1").headers(
        WebAddress.parse("http://minio:9000/bucket/a%20b.gguf")
    )
    assert headers["x-amz-security-token"] == "session"
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token" in headers["Authorization"]


def test_a_secret_is_read_as_the_downloader_s_environment() -> None:
    found = Credentials.of(
        {"AWS_ACCESS_KEY_ID": "id\n", "AWS_SECRET_ACCESS_KEY": "key", "AWS_ENDPOINT_URL": "http://s3:9000/"}
    )
    assert found.s3_address("weights", "chat/a b.gguf").sent == "http://s3:9000/weights/chat/a%20b.gguf"
    assert found.for_s3() is not None
    assert (
        Credentials.of({"AWS_REGION": "eu-west-1"}).s3_address("b", "k").sent
        == "https://s3.eu-west-1.amazonaws.com/b/k"
    )
    assert Credentials().for_s3() is None


@pytest.mark.parametrize(
    ("values", "hub", "expected"),
    [
        ({"HF_TOKEN": "hf_x"}, True, {"Authorization": "Bearer hf_x"}),
        ({"HF_TOKEN": "hf_x"}, False, None),
        ({"SOURCE_TOKEN": "t"}, False, {"Authorization": "Bearer t"}),
        ({"SOURCE_TOKEN": "t"}, True, {"Authorization": "Bearer t"}),
        ({"SOURCE_TOKEN": "t", "HF_TOKEN": "hf_x"}, True, {"Authorization": "Bearer hf_x"}),
        ({"SOURCE_TOKEN": "a\r\nX-Evil: 1"}, False, {}),
    ],
)
def test_a_token_goes_where_it_belongs(values: dict[str, str], hub: bool, expected: Any) -> None:
    signer = Credentials.of(values).for_web(hub=hub)
    assert (signer.headers(WebAddress.parse("https://x/y")) if signer else None) == expected


def test_nothing_secret_is_ever_shown() -> None:
    values = {
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "HF_TOKEN": "hidden",
        "SOURCE_TOKEN": "hidden",
        "AWS_SESSION_TOKEN": "hidden",
    }
    found = Credentials.of({**values, "AWS_ACCESS_KEY_ID": "id"})
    for thing in (found, found.for_s3(), BearerToken("hidden")):
        assert "hidden" not in repr(thing)
