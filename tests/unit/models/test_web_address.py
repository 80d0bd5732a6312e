"""An address is read in the same way by the checks and by the HTTP client."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urllib3.util import parse_url

from program.desired.hub import HUB, Hub
from program.desired.web_address import AddressInvalid, WebAddress, shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://evil.example\\@huggingface.co/o/r/resolve/main/m.gguf", "backslash"),
        ("https://huggingface.co\\@evil.example/m.gguf", "backslash"),
        ("https://evil.example\\.huggingface.co/m.gguf", "backslash"),
        ("https:\\\\evil.example/m.gguf", "backslash"),
        ("https://huggingface.co/o/r\\..\\x", "backslash"),
        ("https://user:secret@huggingface.co/m.gguf", "user or a password"),
        ("https://huggingface.co@evil.example/m.gguf", "user or a password"),
        ("https://@evil.example/m.gguf", "user or a password"),
        ("https://evil.example\t@huggingface.co/m", "control characters"),
        ("https://huggingface.co\r\nHost: evil.example/m", "control characters"),
        ("https://huggingface.co/m\x00.gguf", "control characters"),
        ("https://huggingface.co/m\u200b.gguf", "control characters"),
        ("https://huggingface.co:0/m", "port"),
        ("https://huggingface.co:65536/m", "port"),
        ("https://huggingface.co:/m", "port"),
        ("https://huggingface.co:80a/m", "port"),
        ("https://huggingface.co:+443/m", "port"),
        ("https://huggingface.co:0443/m", "port"),
        ("https://huggingface.co:\uff14\uff14\uff13/m", "port"),
        ("https://huggingface.co:443:80/m", "port"),
        ("https:///m.gguf", "no host"),
        ("https://?x", "no host"),
        ("https://hugging%66ace.co/m", "host"),
        ("https://huggingface\u3002co/m", "host"),
        ("https://\uff48uggingface.co/m", "host"),
        ("https://a..b/m", "host"),
        (f"https://{'a.' * 130}b/m", "host"),
        ("https://[::1/m", "host"),
        ("https://[::1]x/m", "host"),
        ("https://[1.2.3.4]/m", "IPv6"),
        ("https://[fe80::1%25eth0]/m", "IPv6"),
        ("https://[fe80::1%eth0]/m", "zone"),
        ("https://huggingface.co/acme/../evil/m.gguf", "`..`"),
        ("https://huggingface.co/acme/%2e%2E/evil/m.gguf", "`..`"),
        ("https://huggingface.co/acme/..%2Fevil/m.gguf", "`..`"),
        ("https://huggingface.co/./m.gguf", "`..`"),
        ("ftp://huggingface.co/m", "scheme"),
        ("huggingface.co/m", "not a URL"),
        ("", "not a URL"),
    ],
)
def test_what_parsers_disagree_on_is_refused(text: str, why: str) -> None:
    with pytest.raises(AddressInvalid, match=why) as caught:
        WebAddress.parse(text)
    assert "secret" not in str(caught.value)


def test_an_address_is_taken_apart() -> None:
    found = WebAddress.parse("HTTPS://Files.Example.:8443/a b/m.gguf".replace(" ", "%20") + "?sig=a/b?c#frag")
    assert (found.scheme, found.host, found.port) == ("https", "files.example", 8443)
    assert (found.path, found.query) == ("/a%20b/m.gguf", "sig=a/b?c")
    assert found.sent == "https://files.example:8443/a%20b/m.gguf?sig=a/b?c"
    assert found.shown == "https://files.example:8443/a%20b/m.gguf"
    assert "sig" not in repr(found)
    assert WebAddress.parse("http://[::FFFF:127.0.0.1]:80").authority == "[::ffff:7f00:1]:80"
    assert WebAddress.parse("http://x").target == "/"
    assert WebAddress.parse("http://x?a=1").target == "/?a=1"
    assert WebAddress.parse('http://x/ü%zz"<>[]|?q=ü').target == "/%C3%BC%25zz%22%3C%3E%5B%5D%7C?q=%C3%BC"


_PIECES = st.sampled_from(
    [
        "evil.example",
        "huggingface.co",
        "\\",
        "@",
        ":",
        "/",
        "?",
        "#",
        "443",
        "..",
        ".",
        "%2e",
        "[",
        "]",
        "::1",
        " ",
        "a",
        "ü",
        "//",
    ]
)


@given(st.lists(_PIECES, min_size=1, max_size=9), st.sampled_from(["http://", "https://", "HTTPS://"]))
def test_what_is_taken_other_parsers_read_alike(pieces: list[str], scheme: str) -> None:
    try:
        found = WebAddress.parse(scheme + "".join(pieces))
    except AddressInvalid:
        return
    for text in (found.text, found.sent):
        standard, dialled = urlsplit(text), parse_url(text)
        assert (standard.hostname or "").rstrip(".") == found.host
        assert (dialled.host or "").strip("[]").rstrip(".") == found.host
        assert standard.port == dialled.port == found.port
    # The client changes only the case of percent-encoded characters.
    assert parse_url(found.sent).request_uri.upper() == found.target.upper()
    assert WebAddress.parse(found.sent).sent == found.sent


def test_a_redirect_is_read_like_an_address() -> None:
    at = WebAddress.parse("https://a.example:8443/x/y?z")
    assert at.redirected("/m.gguf").sent == "https://a.example:8443/m.gguf"
    assert at.redirected("../m.gguf").sent == "https://a.example:8443/m.gguf"
    assert at.redirected("//b.example/m").sent == "https://b.example/m"
    assert at.redirected("https://b.example/a b?n=ä".encode().decode("latin-1")).sent == (
        "https://b.example/a%20b?n=%C3%A4"
    )
    for location in (
        "https://evil\\@b.example/",
        "\\\\evil\\x",
        "https://me:pw@b/",
        "ftp://b/",
        "http://b/\n",
        "javascript:x",
    ):
        with pytest.raises(AddressInvalid):
            at.redirected(location)


def test_a_mirror_is_an_address_without_userinfo_and_without_a_query() -> None:
    assert Hub.at("") == Hub.at("https://huggingface.co/") == Hub(HUB)
    assert Hub.at(" http://hub.lan:8080/mirror/ ").url == "http://hub.lan:8080/mirror"
    for text in (
        "https://me:pw@hub.lan",
        "https://hub.lan\\@huggingface.co",
        "hub.lan",
        "https://hub.lan/?x",
        "https://h:0",
    ):
        with pytest.raises(AddressInvalid):
            Hub.at(text)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("https://me:pw@example.com/f?token=x#y", "https://example.com/f"),
        ("hf://org/repo@v2", "hf://org/repo@v2"),
        ("s3://bucket/key?versionId=1", "s3://bucket/key"),
        ("https://me:pw\\@example.com/f", "https://example.com/f"),
        ("/srv/m.gguf", "/srv/m.gguf"),
        ("https://a\x1b[31m/", "https://a\ufffd[31m/"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, text: str) -> None:
    assert shown(address) == text
