"""The classes of a request come from its header, from its text, or from both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.routers import classification
from gateway.routers.classification import classes_of, detected
from program.desired.router import Classification


@pytest.mark.parametrize(
    "text",
    [
        "write to jane.doe+x@mail.example.org please",
        "card 4111 1111 1111 1111",
        "card 5500-0055-5555-5559",
        "IBAN DE89 3704 0044 0532 0130 00",
        "GB82WEST12345698765432",
        "SSN 123-45-6789",
        "call +49 30 1234567",
    ],
)
def test_personal_data_is_found(text: str) -> None:
    assert detected(text) == {"pii"}


@pytest.mark.parametrize("text", ["MRN: 00123456", "NHS number 943 476 5919", "diagnosis: E11.9", "ICD-10 J45"])
def test_medical_data_is_found(text: str) -> None:
    assert detected(text) == {"phi"}


@pytest.mark.parametrize(
    "text",
    [
        "card 4111 1111 1111 1112",
        "DE88 3704 0044 0532 0130 00",
        "NHS number 943 476 5918",
        "SSN 000-45-6789",
        "0000 0000 0000 0000",
        "version 1.2.3, build 20240131120000",
        "3.14159265358979323846",
        "def f(a): return a @ b",
        "+1",
        "the answer is 42",
    ],
)
def test_other_texts_have_no_class(text: str) -> None:
    assert detected(text) == set()


BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "my card is 4111 1111 1111 1111"}]}],
    }
)


def found_in(body: Any) -> frozenset[str]:
    return classes_of(Classification("detector"), {}, body if isinstance(body, str) else json.dumps(body))


def test_the_header_and_the_detector_by_mode() -> None:
    headers = {"x-llmkube-classification": "Internal, PHI"}
    assert classes_of(Classification("header-only"), headers, BODY) == {"internal", "phi"}
    assert classes_of(Classification("detector"), headers, BODY) == {"pii"}
    assert classes_of(Classification("hybrid"), headers, BODY) == {"internal", "phi", "pii"}


def test_a_header_takes_no_class_away() -> None:
    assert classes_of(Classification("hybrid"), {"x-llmkube-classification": "public"}, BODY) == {"public", "pii"}


def test_images_are_not_searched_and_long_texts_count_as_sensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    image = {"model": "m", "image": "data:image/png;base64,4111111111111111AAA="}
    assert found_in(image) == frozenset()
    monkeypatch.setattr(classification, "LONGEST", 10)
    assert found_in({"prompt": "a" * 11}) == {"pii", "phi"}


@pytest.mark.parametrize(
    "text",
    [
        "data: mail to jane@example.com SSN 123-45-6789",
        "data:image/png;base64,jane@example.org",
        "data:image/png;base64,AAAA my card is 4111 1111 1111 1111",
        "data:text/plain,SSN 123-45-6789",
        "data:image/123-45-6789;base64,AAAA",
    ],
)
def test_a_text_that_only_begins_as_an_image_is_searched(text: str) -> None:
    assert found_in({"model": "m", "prompt": text}) == {"pii"}


@pytest.mark.parametrize(
    ("body", "classes"),
    [
        ({"card": 4111111111111111}, {"pii"}),
        ({"card": 4111111111111111.0}, {"pii"}),
        ({"cards": {"4111 1111 1111 1111": None}}, {"pii"}),
        ({"jane@example.org": ["a"]}, {"pii"}),
        ({"MRN": 12345678}, {"phi"}),
        ({"temperature": 0.7, "seed": 12, "stream": True, "user": None}, set()),
        ('{"messages": [{"content": "SSN 123-45-6789", "content": "Hi"}]}', {"pii"}),
    ],
)
def test_keys_numbers_and_keys_that_come_twice_are_searched(body: Any, classes: set[str]) -> None:
    assert found_in(body) == classes


@pytest.mark.parametrize("prompt", [[1, 2], [[1], [2]], ["a", 3], [1.0], [["a"], [[2]]]])
def test_tokens_count_as_sensitive(prompt: list[Any]) -> None:
    assert found_in({"model": "m", "prompt": prompt}) == {"pii", "phi"}
    assert found_in({"model": "m", "prompt_embeds": "AAAA"}) == {"pii", "phi"}
    assert found_in({"model": "m", "stop_token_ids": [2], "prompt": "Hi", "tools": [{"enum": [1, 2]}]}) == set()
