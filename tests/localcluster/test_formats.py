"""String formats: what Kubernetes' strfmt takes in objects of CRDs, and Go's own reading of its kinds' times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.formats import _CUSTOM, format_check

TAKEN = {
    "date-time": [
        *("2026-01-01T00:00:00Z", "2026-01-01t00:00:00z", "2026-02-28T23:59:59.123456789+01:00"),
        *(
            "2026-01-01T00:00:00+99:99",
            "0000-01-01T00:00:00Z",
            "2026-01-01T00:00:00Zt x",
            "2026-01-01T00:00:00x5Z",
        ),
        "0000-02-29T00:00:00-00:00",
    ],
    "date": ["2024-02-29", "0000-01-01", "9999-12-31"],
    "duration": ["1h30m", "-1.5s", "0", "22 ns", "2 days", "1wk", "3 HOURS", "x 5 minutes"],
    "byte": ["YQ==", "YWI=", "YWJj"],
    "ipv4": ["1.2.3.4", "010.001.1.1", "::ffff:1.2.3.4"],
    "ipv6": ["::1", "fe80::1", "::ffff:1.2.3.4"],
    "cidr": ["10.0.0.0/8", "10.1.2.3/08", "2001:db8::/64"],
    "mac": ["01:23:45:67:89:ab", "01-23-45-67-89-ab-cd-ef", "0123.4567.89ab"],
    "uri": ["https://a.b/c?d#e", "/path with blank", "*", "mailto:x", "http://[::1]:80/", "http://a/%41"],
    "email": ["a@b", "Ann <a@b.example>"],
    "hostname": ["a", "example.com", "1.example.com", "bücher.example"],
    "uuid": ["123E4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"],
    "uuid3": ["bcd02e22-68f0-3046-a512-327cca9def8f"],
    "uuid4": ["025b0d74-00a2-4048-bf57-227c5111bb34"],
    "uuid5": ["886313e1-3b8a-5372-9b90-0c9aee199e5d"],
    "isbn": ["0321751043", "978-0321751041"],
    "isbn10": ["0-321-75104-3"],
    "isbn13": ["978 0321751041"],
    "creditcard": ["4111-1111-1111-1111"],
    "ssn": ["111-11-1111"],
    "hexcolor": ["#FFF", "ffffff"],
    "rgbcolor": ["rgb(255, 0,1)"],
    "bsonobjectid": ["507f1f77bcf86cd799439011"],
    "k8s-short-name": ["a-b"],
    "k8s-long-name": ["a.b-c"],
}
REFUSED = {
    "date-time": [
        *(
            "nonsense",
            "",
            "2026-01-01",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T24:00:00Z",
        ),
        *("2026-02-30T00:00:00Z", "2026-01-01T00:00:60Z", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00Zx"),
        *("0001-02-29T00:00:00Z", "٢٠٢٦-01-01T00:00:00Z", "2026-01-01T00:00:00Z\n"),
    ],
    "date": ["2023-02-29", "2026-W01-1", "20260101", "0100-02-29"],
    "duration": ["", "x", "5", "5 parsecs", "99999999999999999999 days"],
    "byte": ["", "YQ", "YQ==\n", "a-_b"],
    "ipv4": ["1.2.3", "256.1.1.1", "::1", "1.2.3.4%x"],
    "ipv6": ["1.2.3.4", "fe80::1%eth0", "::ffff:01.2.3.4"],
    "cidr": ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/255.0.0.0", "::/129"],
    "mac": ["01:23:45:67:89", "01:23-45:67:89:ab"],
    "uri": ["", "a/b", ":x", "http://a b/", "/%zz", "/a\x00"],
    "email": ["", "a", "a@", "a@b, c@d"],
    "hostname": ["", "-a", "a_b", f"{'a' * 64}.example"],
    "uuid": ["123e4567-e89b-12d3-a456-42661417400"],
    "uuid4": ["bcd02e22-68f0-3046-a512-327cca9def8f"],
    "isbn": ["0321751044", "978-0321751042"],
    "creditcard": ["4111-1111-1111-1112"],
    "ssn": ["111111111"],
    "hexcolor": ["#FF"],
    "rgbcolor": ["rgb(256,0,0)"],
    "bsonobjectid": ["507f1f77bcf86cd79943901"],
    "k8s-short-name": ["A", "a" * 64, "a.b"],
    "k8s-long-name": ["a..b", "a" * 254],
}
OF_KUBERNETES_TAKEN = {
    "date-time": ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+01:00", "0000-01-01T00:00:00Z"],
    "byte": ["", "YQ==", "YW\nJj"],
}
OF_KUBERNETES_REFUSED = {
    "date-time": [
        *(
            "2026-01-01t00:00:00z",
            "2026-01-01T00:00:00+99:99",
            "2026-01-01T00:00:00Zt x",
            "2026-01-01T00:00:00x5Z",
        ),
        "nonsense",
    ],
    "byte": ["YQ", "*"],
}


def pairs(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(name, text) for name, texts in table.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), pairs(TAKEN))
def test_taken_from_a_custom_object(name: str, text: str) -> None:
    check = format_check(name, custom=True)
    assert check is not None and check(text)


@pytest.mark.parametrize(("name", "text"), pairs(REFUSED))
def test_refused_to_a_custom_object(name: str, text: str) -> None:
    check = format_check(name, custom=True)
    assert check is not None and not check(text)


@pytest.mark.parametrize(("name", "text"), pairs(OF_KUBERNETES_TAKEN))
def test_taken_from_kubernetes_own_kinds(name: str, text: str) -> None:
    check = format_check(name, custom=False)
    assert check is not None and check(text)


@pytest.mark.parametrize(("name", "text"), pairs(OF_KUBERNETES_REFUSED))
def test_refused_to_kubernetes_own_kinds(name: str, text: str) -> None:
    check = format_check(name, custom=False)
    assert check is not None and not check(text)


def test_other_formats_are_only_words() -> None:
    assert format_check("password", custom=True) is None and format_check("uuid", custom=False) is None


@given(text=st.text(max_size=40))
def test_no_text_makes_a_check_fail(text: str) -> None:
    for check in _CUSTOM.values():
        assert check(text) in (True, False)
