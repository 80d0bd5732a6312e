"""Kubernetes quantities, read as Kubernetes reads them."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.desired.errors import SpecInvalid
from program.dialects.quantities import bytes_of, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", Decimal(2)),
        ("500m", Decimal("0.5")),
        ("1.5", Decimal("1.5")),
        (".5", Decimal("0.5")),
        ("1e3", Decimal(1000)),
        ("1E3", Decimal(1000)),
        ("2E", Decimal(2) * 10**18),
        ("3Gi", Decimal(3 * 2**30)),
        ("3G", Decimal(3 * 10**9)),
        ("7n", Decimal("7e-9")),
        ("0", Decimal(0)),
    ],
)
def test_numbers_and_suffixes(text: str, value: Decimal) -> None:
    assert parse_quantity(text, field="f") == value


@pytest.mark.parametrize(
    "text", ["", "two", "12 Gigs", "5GB", "-1", "1Gi ", "0x10", "٣", "1e999999999", "1e-999999", "10E", "NaN", "--1"]
)
def test_what_is_no_quantity_names_the_field(text: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_quantity(text, field="spec.resources.cpu")
    assert caught.value.field == "spec.resources.cpu"


def test_bytes_are_rounded_up_and_absence_stays_absent() -> None:
    assert bytes_of("1500m", field="f") == 2
    assert bytes_of("24Gi", field="f") == 24 * 2**30
    assert bytes_of(None, field="f") is None


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_a_spec_error(text: str) -> None:
    with contextlib.suppress(SpecInvalid):
        assert parse_quantity(text, field="f") >= 0
