"""JSON as the API server reads and writes it."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.apiserver.decoding import decode_body
from localcluster.apiserver.errors import ApiError
from localcluster.json_text import JsonError, copied, dumps, loads


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_what_is_read_is_written_again() -> None:
    for text in (b'{"a":[1,-2,1.5,null,true,"\xc3\xa4"]}', nested(250), b"9223372036854775807"):
        value = loads(text)
        assert dumps(value) == text and copied(value) == value
    inner = {"a": [1]}
    assert copied(inner)["a"] is not inner["a"]


@pytest.mark.parametrize("text", [b"NaN", b"01", b"[1,]", b"{'a':1}", b'"\xff"', b"9" * 400, nested(2_000)])
def test_what_is_no_json_is_refused_in_words(text: bytes) -> None:
    with pytest.raises(JsonError, match=r"\w"):
        loads(text)


def test_what_is_nested_too_deeply_is_not_written() -> None:
    with pytest.raises(JsonError, match="nested too deeply"):
        dumps(loads(nested(300)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{2: a, true: 1, day: 2026-01-01}", {"2": "a", "true": 1, "day": "2026-01-01"}),
        ("a: [1, 1.5, null, '1']", {"a": [1, 1.5, None, "1"]}),
    ],
)
def test_yaml_is_read_as_json(text: str, value: Any) -> None:
    assert decode_body(text.encode(), "application/yaml") == value


@pytest.mark.parametrize(
    "text", ["a: &a [x]\nb: *a", "a: &a [*a]", "a: !!binary eA==", "a: {", "a: !!set {x}"]
)
def test_yaml_that_json_cannot_say_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        decode_body(text.encode(), "application/yaml")
    assert refused.value.code == 400
