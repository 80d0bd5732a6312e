"""Finds the classes of a request's data: by a header, or by patterns of personal and medical data in its text. Pure.

The detector knows these forms, and checks numbers where their form has a check digit:

- `pii`: addresses of e-mail, numbers of payment cards (Luhn), IBANs (ISO 7064), social security numbers of the USA,
  international telephone numbers
- `phi`: numbers of the NHS (modulo 11), numbers of medical records and codes of ICD-10 behind their names

It finds no names, no addresses of homes, and nothing in images. A prompt of token ids counts as sensitive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from program.desired.router import Classification

LONGEST = 4 * 1024 * 1024
"""Most characters that are inspected. A longer text counts as sensitive, because nobody has read it."""

_MEDIA = re.compile(r"(data:(?:image|audio|video)/[\w.+-]{1,64};base64,)[A-Za-z0-9+/]*={0,2}")
"""An image, a sound or a film that is encoded in the body. All other texts are read, whatever they begin with."""
_OF_THE_ANSWER = frozenset({"stop_token_ids", "allowed_token_ids", "logprob_token_ids"})
"""Fields with token ids that are no part of a prompt."""

_EMAIL = re.compile(r"[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_CARD = re.compile(r"(?<![\d.,-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_SSN = re.compile(r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])")
_PHONE = re.compile(r"(?<![\w+])\+[1-9]\d{0,2}(?:[ .()-]{0,2}\d){7,12}(?!\d)")
_NHS = re.compile(r"\bNHS\b\D{0,20}(\d{3}[ -]?\d{3}[ -]?\d{4})(?!\d)", re.IGNORECASE)
_RECORD = re.compile(r"\b(?:MRN|medical record (?:number|no\.?))\b[\s:#]{0,4}[A-Z]{0,3}\d{5,12}\b", re.IGNORECASE)
_ICD = re.compile(r"\b(?:ICD(?:-?10)?(?:-CM)?|diagnosis(?: code)?)\b[\s:#]{1,4}[A-TV-Z]\d[0-9AB](?:\.[0-9A-Z]{1,4})?\b")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, also those that it has twice."""


def classes_of(classification: Classification, headers: Mapping[str, str], body: str) -> frozenset[str]:
    """Return the classes of a request in lower case. `body` is valid JSON.

    With mode `hybrid` the header adds classes to those of the detector, and takes none away.
    """
    found: set[str] = set()
    if classification.mode != "detector":
        found.update(word for part in headers.get(classification.header, "").split(",") if (word := part.strip()))
    if classification.mode != "header-only":
        text = _readable(body)
        found |= classification.sensitive if text is None or len(text) > LONGEST else detected(text)
    return frozenset(each.casefold() for each in found)


def detected(text: str) -> set[str]:
    """Return the classes of the data that a text contains."""
    found = set()
    if (
        _EMAIL.search(text)
        or _SSN.search(text)
        or _PHONE.search(text)
        or any(_is_card(each[0]) for each in _CARD.finditer(text))
        or any(_is_iban(each[0]) for each in _IBAN.finditer(text))
    ):
        found.add("pii")
    if _RECORD.search(text) or _ICD.search(text) or any(_is_nhs(each[1]) for each in _NHS.finditer(text)):
        found.add("phi")
    return found


def _readable(body: str) -> str | None:
    """Return all texts of a body; None if it has a part that cannot be read."""
    try:
        values = json.loads(body, object_pairs_hook=_Pairs)
    except RecursionError:
        return None
    if any(key == "prompt_embeds" or (key not in _OF_THE_ANSWER and _has_tokens(value)) for key, value in values):
        return None
    return "\n".join(_texts(values))


def _has_tokens(value: Any) -> bool:
    """Return whether a field is a list of token ids, or of such lists."""
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, list) and not isinstance(each, _Pairs):
            if any(_is_number(entry) for entry in each):
                return True
            stack.extend(each)
    return False


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts, keys and numbers of a body, without the content of images. A key stands before its value."""
    stack = [("", value)]
    while stack:
        key, each = stack.pop()
        if isinstance(each, _Pairs):
            yield key
            stack.extend(each)
        elif isinstance(each, list):
            yield key
            stack.extend(("", entry) for entry in each)
        elif isinstance(each, str):
            media = _MEDIA.fullmatch(each)
            yield f"{key}: {each if media is None else media[1]}"
        elif _is_number(each):
            yield f"{key}: {int(each) if isinstance(each, float) and each.is_integer() else each}"
        else:
            yield key


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_card(text: str) -> bool:
    """Return whether digits with blanks are the number of a payment card, by Luhn's check."""
    digits = _digits(text)
    if len(set(digits)) == 1:
        return False
    doubled = (digit * 2 for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(digit - 9 if digit > 9 else digit for digit in doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    compact = text.replace(" ", "")
    if not 15 <= len(compact) <= 34:
        return False
    turned = compact[4:] + compact[:4]
    return int("".join(str(int(each, 36)) for each in turned)) % 97 == 1


def _is_nhs(text: str) -> bool:
    *digits, check = _digits(text)
    rest = 11 - sum(digit * weight for digit, weight in zip(digits, range(10, 1, -1), strict=True)) % 11
    return rest != 10 and rest % 11 == check


def _digits(text: Iterable[str]) -> list[int]:
    return [int(each) for each in text if each.isdigit()]
