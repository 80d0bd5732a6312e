"""Quantities are read as Kubernetes reads them."""

from __future__ import annotations

import contextlib
import re
from decimal import ROUND_UP, Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils import quantity as of_the_package

from program.desired.errors import SpecInvalid
from program.desired.quantities import bytes_of, parse_quantity, read_quantity


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
        ("1Ei", Decimal(2**60)),
        ("1.5Ei", Decimal(3 * 2**59)),
        ("1E", Decimal(10**18)),
        ("1e-3", Decimal("0.001")),
        ("1E+2", Decimal(100)),
        ("+4", Decimal(4)),
        ("5.", Decimal(5)),
        ("2k", Decimal(2000)),
        ("3u", Decimal("0.000003")),
        ("0.0000000001", Decimal("1e-9")),
        ("100Ei", Decimal(2**63 - 1)),
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


@pytest.mark.parametrize(("text", "value"), [("-1Gi", -(2**30)), ("-0", 0), ("10E", 10**19), ("-100Ei", 1 - 2**63)])
def test_amounts_that_no_user_may_ask_for_are_read_where_the_api_server_took_them(text: str, value: int) -> None:
    assert read_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("ei", "1e", "1ei", "1ki", "1K", "1mi", "1 Gi", "1e1.5", "e3", ".", "+", "", "1Eii"),
        # The kubernetes package accepts these; Kubernetes does not.
        *("NaN", "Infinity", "sNaN", "1_000", " 1", "٣", "1e3k", "1e3Ki", "1e2m"),
    ],
)
def test_what_kubernetes_refuses_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        read_quantity(text)


_NUMBER = st.from_regex(r"[+-]?([0-9]{1,6}(\.[0-9]{0,3})?|\.[0-9]{1,3})", fullmatch=True)
_BINARY = st.sampled_from(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
_SUFFIX = st.one_of(st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E"]), _BINARY)


def _to_billionths(value: Decimal) -> Decimal:
    return value.quantize(Decimal("1e-9"), rounding=ROUND_UP, context=Context(prec=80))


@given(_NUMBER, _SUFFIX)
def test_numbers_with_a_suffix_are_read_as_the_kubernetes_package_reads_them(number: str, suffix: str) -> None:
    expected = Decimal(of_the_package.parse_quantity(number + suffix))
    found = read_quantity(number + suffix)
    if suffix.endswith("i") and abs(expected) > 2**63 - 1:
        # Kubernetes limits such values, and the package does not.
        assert abs(found) == 2**63 - 1
        return
    # Kubernetes rounds to billionths, away from zero; the package does not round.
    assert found == _to_billionths(expected)


@given(_NUMBER, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(min_value=0, max_value=30))
def test_numbers_with_an_exponent_are_read_as_the_grammar_says(number: str, e: str, sign: str, power: int) -> None:
    expected = Decimal(f"{number}e{sign}{power}")
    assert read_quantity(f"{number}{e}{sign}{power}") == _to_billionths(expected)


@given(st.text(alphabet="0123456789+-.eEinumkKMGTPx ", max_size=12))
def test_exactly_what_the_grammar_describes_is_a_quantity(text: str) -> None:
    number = r"[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)"
    suffix = r"(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?"
    try:
        read_quantity(text)
        accepted = True
    except ValueError as error:
        accepted = "out of range" in str(error)
    assert accepted == (re.fullmatch(number + suffix, text) is not None)


def test_bytes_are_rounded_up_and_absence_stays_absent() -> None:
    assert bytes_of("1500m", field="f") == 2
    assert bytes_of("24Gi", field="f") == 24 * 2**30
    assert bytes_of(None, field="f") is None


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_a_spec_error(text: str) -> None:
    with contextlib.suppress(SpecInvalid):
        assert parse_quantity(text, field="f") >= 0
