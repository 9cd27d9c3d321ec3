"""Formats of times and bytes: what objects of CRDs may say, and what Kubernetes' own kinds may."""

from __future__ import annotations

import pytest

from localcluster.formats import format_check

CUSTOM = {
    "date-time": (
        [
            *("2026-01-01T00:00:00Z", "2026-01-01t00:00:00z", "2026-02-28T23:59:59.123456789+01:00"),
            *("2026-01-01T00:00:00+99:99", "0000-02-29T00:00:00-00:00", "2026-01-01T00:00:00Zt x"),
        ],
        [
            *("nonsense", "", "2026-01-01", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00"),
            *("2026-01-01T24:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T00:00:60Z"),
            *("2026-01-01T00:00:00Zx", "0001-02-29T00:00:00Z", "2026-01-01T00:00:00Z\n"),
        ],
    ),
    "date": (["2024-02-29", "0000-01-01"], ["2023-02-29", "2026-W01-1", "20260101"]),
    "duration": (["1h30m", "-1.5s", "0", "22 ns", "2 days", "3 HOURS"], ["", "x", "5", "5 parsecs"]),
    "byte": (["YQ==", "YWI=", "YWJj"], ["", "YQ", "YQ==\n", "a-_b"]),
}
OF_KUBERNETES = {
    "date-time": (
        ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+01:00", "0000-01-01T00:00:00Z"],
        ["2026-01-01t00:00:00z", "2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00x5Z", "nonsense"],
    ),
    "byte": (["", "YQ==", "YW\nJj"], ["YQ", "*"]),
}


@pytest.mark.parametrize(("table", "custom"), [(CUSTOM, True), (OF_KUBERNETES, False)])
def test_what_is_taken_and_what_is_refused(
    table: dict[str, tuple[list[str], list[str]]], custom: bool
) -> None:
    for name, (taken, refused) in table.items():
        check = format_check(name, custom=custom)
        assert check is not None
        assert [text for text in taken if not check(text)] == [], name
        assert [text for text in refused if check(text)] == [], name


def test_other_formats_are_only_words() -> None:
    assert format_check("uuid", custom=True) is None and format_check("date", custom=False) is None
