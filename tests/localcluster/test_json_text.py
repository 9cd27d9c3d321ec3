"""JSON as an API server reads it: what Go takes and Python's readers do not, and the other way round."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.json_text import JsonError, copied, dumps, duplicate_fields, from_yaml, loads, parse

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(value=VALUES)
def test_ordinary_values_are_read_and_written_as_everywhere(value: Any) -> None:
    text = orjson.dumps(value)
    assert parse(text) == loads(text) == copied(value) == value
    assert dumps(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", 9223372036854775808.0),
        (b"18446744073709551615", 18446744073709551615.0),
        (b"1e3", 1000.0),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'"a\xffb\xe2\x82"', "a\ufffdb\ufffd\ufffd"),
        (b'"\\ud800x\\ud83d\\ude00"', "\ufffdx\U0001f600"),
        (b'{"\\ud800": ["\\udfff"]}', {"\ufffd": ["\ufffd"]}),
    ],
)
def test_numbers_and_strings_are_those_of_go(text: bytes, value: Any) -> None:
    read = parse(text)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 400,
        b"9" * 5000,
        b"01",
        b"[1,]",
        b'"\x01"',
        b"{'a':1}",
        b"1 2",
        b"\xef\xbb\xbf1",
    ],
)
def test_what_is_no_json_is_refused_in_words(text: bytes) -> None:
    with pytest.raises(JsonError, match=r"\w"):
        parse(text)


@pytest.mark.parametrize("levels", [254, 255, 300, 700])
def test_depth_beyond_the_fast_writer_is_nothing_special(levels: int) -> None:
    text = b'{"a":[' * (levels // 2) + b"1" + b"]}" * (levels // 2)
    assert dumps(loads(text)) == text
    assert dumps(copied(parse(text))) == text


def test_what_is_too_deep_is_refused() -> None:
    for levels in (10_001, 1_000_000):
        with pytest.raises(JsonError, match="exceeded max depth of 10000"):
            parse(b"[" * levels + b"]" * levels)


def test_fields_that_come_twice_are_named_by_their_paths() -> None:
    text = b'{"a":1,"b":[{"c":1,"c":2,"c":{"x":1,"x":2}}],"a":{}}'
    assert duplicate_fields(text) == ["a", "b[0].c", "b[0].c.x"]
    assert duplicate_fields(b'{"a":{"a":1},"b":{"a":1}}') == []


@given(value=VALUES)
def test_nothing_comes_twice_in_what_was_written_by_a_writer(value: Any) -> None:
    assert duplicate_fields(json.dumps(value).encode()) == []


def test_yaml_that_names_its_parts_again_and_again_is_refused() -> None:
    bomb: Any = "x" * 100
    for _ in range(30):
        bomb = [bomb, bomb]
    endless: list[Any] = []
    endless.append(endless)
    for value in (bomb, endless):
        with pytest.raises(JsonError):
            from_yaml(value)
    shared = {"a": 1}
    plain = from_yaml([shared, shared])
    assert plain == [shared, shared] and plain[0] is not plain[1]


def test_yaml_keys_and_numbers_become_those_of_json() -> None:
    assert from_yaml({2: "a", True: 2**70}) == {"2": "a", "true": float(2**70)}
    for value in (float("nan"), {1, 2}, b"x"):
        with pytest.raises(JsonError):
            from_yaml({"a": value})
