from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.job_spec import LIMIT_PATTERN
from localcluster.quantities import parse_quantity
from reconcilers.observed.resources import BINARY, DECIMAL, SMALL, format_bytes, parse, whole

QUANTITIES = [
    ("0", 0),
    ("2", 2),
    (3, 3),
    ("500m", Fraction(1, 2)),
    ("1.5Gi", 3 * 2**29),
    (".5k", 500),
    ("5.", 5),
    ("+1", 1),
    ("-1Ki", -1024),
    ("1e3", 1000),
    ("1E3", 1000),
    ("1E", 10**18),
    ("12e-3", Fraction(12, 1000)),
    ("100n", Fraction(1, 10**7)),
    ("0.1Ki", Fraction(1024, 10)),
]
NO_QUANTITIES = ["", " 1", "1 ", "1Kib", "1ki", "1e", "Gi", "1.2.3", "1,5Gi", "1K", "٣", "1e9999"]


@pytest.mark.parametrize(("text", "units"), QUANTITIES)
def test_quantities_are_read_exactly(text: str | int, units: Fraction) -> None:
    assert parse(text) == units


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)


def test_the_api_server_takes_every_limit_that_can_be_read_and_no_other() -> None:
    limits = [text for text, units in QUANTITIES if isinstance(text, str) and units >= 0]
    assert all(re.fullmatch(LIMIT_PATTERN, text) for text in limits)
    assert not any(re.fullmatch(LIMIT_PATTERN, text) for text in [*NO_QUANTITIES, "-1Ki"])


@pytest.mark.parametrize(
    ("count", "text"),
    [(24 * 2**30, "24Gi"), (3 * 10**9, "3G"), (1500, "1500"), (1536, "1536"), (0, "0"), (2**60, "1Ei")],
)
def test_bytes_are_written_as_short_as_is_exact(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 2**63))
def test_bytes_written_are_the_bytes_read(count: int) -> None:
    assert parse(format_bytes(count)) == count == whole(format_bytes(count))


@given(
    number=st.decimals(0, 10**6, places=3, allow_nan=False),
    suffix=st.sampled_from(["", *BINARY, *DECIMAL, *SMALL]),
)
def test_the_embedded_cluster_reads_the_same(number: object, suffix: str) -> None:
    assert parse(f"{number}{suffix}") == Fraction(parse_quantity(f"{number}{suffix}"))
