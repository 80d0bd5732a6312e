"""Finds the classes of a request's data: by a header, or by patterns of personal and medical data in its text. Pure.

The detector knows these forms, and checks numbers where their form has a check digit:

- `pii`: addresses of e-mail, numbers of payment cards (Luhn), IBANs (ISO 7064), social security numbers of the USA,
  international telephone numbers
- `phi`: numbers of the NHS (modulo 11), numbers of medical records and codes of ICD-10 behind their names

It finds no names, no addresses of homes, and nothing in images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from program.desired.router import Classification

LONGEST = 4 * 1024 * 1024
"""Most characters that are inspected. A longer text counts as sensitive, because nobody has read it."""

_EMAIL = re.compile(r"[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_CARD = re.compile(r"(?<![\d.,-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_SSN = re.compile(r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])")
_PHONE = re.compile(r"(?<![\w+])\+[1-9]\d{0,2}(?:[ .()-]{0,2}\d){7,12}(?!\d)")
_NHS = re.compile(r"\bNHS\b\D{0,20}(\d{3}[ -]?\d{3}[ -]?\d{4})(?!\d)", re.IGNORECASE)
_RECORD = re.compile(r"\b(?:MRN|medical record (?:number|no\.?))\b[\s:#]{0,4}[A-Z]{0,3}\d{5,12}\b", re.IGNORECASE)
_ICD = re.compile(r"\b(?:ICD(?:-?10)?(?:-CM)?|diagnosis(?: code)?)\b[\s:#]{1,4}[A-TV-Z]\d[0-9AB](?:\.[0-9A-Z]{1,4})?\b")


def classes_of(classification: Classification, headers: Mapping[str, str], values: Mapping[str, Any]) -> frozenset[str]:
    """Return the classes of a request in lower case. `values` are the fields of its body.

    With mode `hybrid` the header adds classes to those of the detector, and takes none away.
    """
    found: set[str] = set()
    if classification.mode != "detector":
        found.update(word for part in headers.get(classification.header, "").split(",") if (word := part.strip()))
    if classification.mode != "header-only":
        text = "\n".join(_texts(values))
        found |= classification.sensitive if len(text) > LONGEST else detected(text)
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


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts of a body, except for contents that are encoded in the body, such as images."""
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            if not each.startswith("data:"):
                yield each
        elif isinstance(each, Mapping):
            stack.extend(each.values())
        elif isinstance(each, list):
            stack.extend(each)


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
