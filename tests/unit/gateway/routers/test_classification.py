"""The classes of a request come from its header, from its text, or from both."""

from __future__ import annotations

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


BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "my card is 4111 1111 1111 1111"}]}],
}


def test_the_header_and_the_detector_by_mode() -> None:
    headers = {"x-llmkube-classification": "Internal, PHI"}
    assert classes_of(Classification("header-only"), headers, BODY) == {"internal", "phi"}
    assert classes_of(Classification("detector"), headers, BODY) == {"pii"}
    assert classes_of(Classification("hybrid"), headers, BODY) == {"internal", "phi", "pii"}


def test_a_header_takes_no_class_away() -> None:
    assert classes_of(Classification("hybrid"), {"x-llmkube-classification": "public"}, BODY) == {"public", "pii"}


def test_images_are_not_searched_and_long_texts_count_as_sensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    image = {"model": "m", "image": "data:image/png;base64,jane@example.org"}
    assert classes_of(Classification("detector"), {}, image) == frozenset()
    monkeypatch.setattr(classification, "LONGEST", 10)
    assert classes_of(Classification("detector"), {}, {"prompt": "a" * 11}) == {"pii", "phi"}
