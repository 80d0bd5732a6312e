"""The model in a form with files."""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clients.multipart_body import MultipartBody, boundary_of, is_form
from gateway.clients.request_body import BodyInvalid
from tests.support.gateways import Engine, Front

TYPE = b"multipart/form-data; boundary=b-1"
FIELD = b'Content-Disposition: form-data; name="%s"'
AUDIO = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav'


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"b-1", end: bytes = b"--\r\n") -> bytes:
    whole = b"".join(b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary, headers, content) for headers, content in parts)
    return whole + b"--" + boundary + end


FILE = (AUDIO, bytes(range(256)) * 40)
MODEL = (FIELD % b"model", b"whisper")


@pytest.mark.parametrize("parts", [(MODEL, FILE), (FILE, MODEL), (FILE, MODEL, (FIELD % b"language", b"en"))])
@pytest.mark.parametrize("end", [b"--\r\n", b"--"])
def test_the_model_is_found_wherever_it_stands_and_only_it_is_replaced(
    parts: tuple[tuple[bytes, bytes], ...], end: bytes
) -> None:
    data = form(*parts, end=end)
    body = MultipartBody.read(data, TYPE)
    assert (body.model, body.unchanged()) == ("whisper", data)
    renamed = tuple((headers, b"org/whisper" if headers == MODEL[0] else content) for headers, content in parts)
    assert body.with_model("org/whisper") == form(*renamed, end=end)


def test_an_empty_file_and_an_empty_model_are_content() -> None:
    assert MultipartBody.read(form((AUDIO, b""), MODEL), TYPE).model == "whisper"
    empty = MultipartBody.read(form((FIELD % b"model", b"")), TYPE)
    assert (empty.model, empty.with_model("x")) == ("", form((FIELD % b"model", b"x")))


@pytest.mark.parametrize("encoding", [b"binary", b" 8bit", b"\t 7Bit"])
def test_a_model_may_say_that_it_is_not_encoded(encoding: bytes) -> None:
    plain = FIELD % b"model" + b"\r\nContent-Transfer-Encoding:" + encoding
    assert MultipartBody.read(form((plain, b"whisper")), TYPE).model == "whisper"


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (b"multipart/form-data; boundary=----WebKitFormBoundary7MA4", b"----WebKitFormBoundary7MA4"),
        (b'Multipart/Form-Data ;charset=utf-8; boundary="with space"', b"with space"),
        (b"multipart/form-data;boundary=abc ; charset=utf-8", b"abc"),
    ],
)
def test_boundaries(kind: bytes, boundary: bytes) -> None:
    assert is_form(kind)
    assert boundary_of(kind) == boundary


@pytest.mark.parametrize(
    "kind",
    [
        b"multipart/form-data;",
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=a; boundary=b",
        b'multipart/form-data; boundary="a',
        b"multipart/form-data; boundary=" + b"x" * 71,
        b'multipart/form-data; x="; boundary=b-1"; boundary=b-1',
    ],
)
def test_an_unclear_boundary_is_refused(kind: bytes) -> None:
    with pytest.raises(BodyInvalid, match="boundary"):
        MultipartBody.read(form(MODEL), kind)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (form(FILE), "must provide a model field"),
        (form(MODEL, FILE, MODEL), "two fields"),
        (form((FIELD % b"model" + b'; filename="m"', b"whisper")), "not a short text"),
        (form((FIELD % b"model" + b"\r\nContent-Transfer-Encoding: base64", b"d2hpc3Blcg==")), "not a short text"),
        (form((FIELD % b"model", b"x" * 2000)), "not a short text"),
        (form((FIELD % b"model", b"\xff")), "not UTF-8"),
        (form(MODEL)[:-4], "has no end"),
        (form(MODEL, end=b"--\r\nmore"), "continues after"),
        (form(MODEL, end=b"x--\r\n"), "has no end, or its boundary"),
        (b"preamble\r\n" + form(MODEL), "does not begin"),
        (b"", "does not begin"),
        (form((b"Content-Type: text/plain", b"x"), MODEL), "no name"),
        (form((b"Content-Disposition: form-data; name=model", b"x")), "no name"),
        (form((b"Content-Disposition: form-data; name*=utf-8''model", b"x")), "no name"),
        (form((FIELD % b"other" + b"; name*=utf-8''model", b"x")), "no name"),
        (form((FIELD % b"other" + b'; name="model"', b"x")), "no name"),
        (form((FIELD % b"other" + b"\r\n" + FIELD % b"model", b"x")), "no name"),
        (form((FIELD % b"mod\\el", b"x")), "no name"),
        (form((FIELD % b"other" + b"\r\n folded: x", b"x")), "invalid header"),
        (form((FIELD % b"other" + b"\nContent-Length: 1", b"x")), "invalid header"),
        (form(((FIELD % b"other") + b"; x=" + b"y" * 5000, b"x")), "no end of its headers"),
        (form(*[(FIELD % b"other", b"x")] * 1001), "more than 1000 parts"),
    ],
)
def test_what_parsers_could_read_in_different_ways_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BodyInvalid) as refused:
        MultipartBody.read(data, TYPE)
    assert why in refused.value.why


@given(st.lists(st.tuples(st.sampled_from([b"file", b"prompt", b"language"]), st.binary(max_size=60)), max_size=4))
def test_the_standard_library_reads_the_same_model_after_a_replacement(parts: list[tuple[bytes, bytes]]) -> None:
    kept = [(FIELD % name, content) for name, content in parts if b"--b-1" not in content]
    replaced = MultipartBody.read(form(*kept, MODEL), TYPE).with_model("other")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        b"Content-Type: " + TYPE + b"\r\n\r\n" + replaced
    )
    names = [part.get_param("name", header="content-disposition") for part in message.iter_parts()]
    assert names[-1] == "model"
    assert len(names) == len(kept) + 1
    assert replaced == form(*kept, (MODEL[0], b"other"))


def test_a_form_goes_to_the_engine_with_the_name_that_it_expects(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine()
    front.serve(whisper=[engine])
    data = form(FILE, (FIELD % b"model", b"prod/whisper"))
    path = "/v1/audio/transcriptions"
    assert front.ask(data, path, Content_Type=TYPE.decode())[0] == 200
    head, body = engine.seen[0]
    assert body == data
    assert b"Content-Type: " + TYPE in head
    status, _, told = front.ask(form(FILE), path, Content_Type=TYPE.decode())
    assert (status, told["error"]["param"]) == (400, "model")
    assert front.ask(data, path, Content_Type="text/plain")[0] == 400
    assert front.ask({"model": "whisper"}, "/v1/images/edits", Content_Type="application/json")[0] == 200
    assert front.ask({"model": "whisper"}, "/v1/audio/speech")[0] == 200
