"""Kubernetes' protobuf form: what kubectl sends, as JSON; and whatever else comes, refused."""

from __future__ import annotations

import pytest

from localcluster.apiserver.protobuf import PREFIX, ProtobufError, UnknownMessage, decode


def varint(number: int) -> bytes:
    if number < 0x80:
        return bytes([number])
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def number(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value)


def field(tag: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(raw)) + raw


def entry(tag: int, key: str, value: bytes | str) -> bytes:
    return field(tag, field(1, key) + field(2, value))


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    type_meta = field(1, api_version) + field(2, kind)
    return PREFIX + field(1, type_meta) + field(2, raw) + field(3, "") + field(4, "")


META = field(1, field(1, "x") + field(2, "") + field(8, b"") + entry(11, "a", "b"))


def test_a_config_map() -> None:
    raw = META + entry(2, "key", "ä" * 200) + entry(2, "empty", "") + entry(3, "bin", b"\xff") + number(4, 0)
    assert decode(body("v1", "ConfigMap", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "labels": {"a": "b"}},
        "data": {"key": "ä" * 200, "empty": ""},
        "binaryData": {"bin": "/w=="},
        "immutable": False,
    }


def test_options_keep_what_is_zero() -> None:
    raw = number(1, 0) + field(2, field(1, "uid")) + field(4, "Foreground") + field(5, "All")
    decoded = decode(body("policy/v1", "DeleteOptions", raw))
    assert decoded["gracePeriodSeconds"] == 0
    assert decoded["preconditions"] == {"uid": "uid"}
    assert (decoded["propagationPolicy"], decoded["dryRun"]) == ("Foreground", ["All"])


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [("Gadget", b"", "'Gadget'"), ("ConfigMap", field(99, "x"), "field 99 of ConfigMap")],
)
def test_what_is_not_in_the_table_is_not_lost_in_silence(kind: str, raw: bytes, words: str) -> None:
    with pytest.raises(UnknownMessage, match=words):
        decode(body("v1", kind, raw))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{}",
        PREFIX + b"\xff",
        PREFIX + b"\x0a\x7f",
        PREFIX + number(1, 1),
        body("v1", "ConfigMap", META)[:-20],
        body("v1", "ConfigMap", number(1, 7)),
        body("v1", "ConfigMap", field(2, number(1, 7))),
        body("v1", "Secret", b"\x0d\x00"),
    ],
)
def test_broken_bodies_are_refused(sent: bytes) -> None:
    with pytest.raises(ProtobufError):
        decode(sent)
