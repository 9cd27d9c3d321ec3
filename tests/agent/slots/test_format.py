"""Headers of slots, which may come over a network: read as they were written, or refused."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.slots import format as layout
from agent.slots.format import CONTROL_BYTES, Header, Mark, TensorPart, lay_out, padded
from agent.slots.slot import DamagedError, Slot

many = settings(max_examples=30, deadline=None)
MARK = Mark(1, 2, 0, 1)
ITEM_BYTES = {"float32": 4, "int8": 1, "complex128": 16, "float8_e4m3fn": 1}


@st.composite
def parts(draw: st.DrawFn) -> TensorPart:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    place: tuple[Any, Any] = (None, None)
    if draw(st.booleans()):
        before = draw(st.tuples(*(st.integers(0, 9) for _ in shape)))
        after = draw(st.tuples(*(st.integers(0, 9) for _ in shape)))
        place = tuple(map(sum, zip(before, shape, after, strict=True))), before
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    return TensorPart(draw(st.text(max_size=5)), dtype, shape, nbytes, *place, draw(st.booleans()))


headers = st.lists(parts(), max_size=5, unique_by=lambda part: part.name).map(lay_out)


def slot_with(data: bytes, start: int, length: int | None = None, size: int = 1 << 14) -> Slot:
    """A slot that says that its header is there."""
    slot = Slot(memoryview(bytearray(size)))
    slot.commit(MARK, lay_out([]))
    slot.bytes(0, size)[start : start + len(data)] = data[: max(0, size - start)]
    struct.pack_into(
        "2q", slot.bytes(0, CONTROL_BYTES), 6 * 8, start, len(data) if length is None else length
    )
    return slot


@many
@given(header=headers)
def test_a_header_comes_back_as_it_was(header: Header) -> None:
    assert Header.decode(header.encoded) == header
    assert slot_with(header.encoded, header.end).header() == header


numbers = st.sampled_from([-1, 0, 1, 63, 4096, 2**31, 2**62, 2**63, 10**400, 1.5, True, None, "1", [], [1]])
junk = st.recursive(
    numbers | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(header=headers, data=st.data())
def test_a_header_that_was_changed_is_refused_or_describes_what_is_within_its_slot(
    header: Header, data: st.DataObject
) -> None:
    listed = json.loads(header.encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        if listed and data.draw(st.booleans()):
            entry = data.draw(st.sampled_from(listed))
            key = data.draw(st.sampled_from(["name", "dtype", "shape", "offset", "nbytes", "global_shape"]))
            other = data.draw(st.sampled_from(listed))
            changed = junk | st.lists(numbers, max_size=3) | st.sampled_from(["load", "nn", "Tensor", "bool"])
            if isinstance(entry, dict) and isinstance(other, dict):
                entry[key] = data.draw(changed | st.just(other.get(key)))
        else:
            listed.insert(
                data.draw(st.integers(0, len(listed))), data.draw(junk | st.sampled_from(listed or [1]))
            )
    encoded = json.dumps(listed, separators=(",", ":")).encode()
    start = data.draw(st.sampled_from([header.end, -1, 0, CONTROL_BYTES, 1 << 14, 2**62]))
    slot = slot_with(encoded, min(max(start, CONTROL_BYTES), 1 << 14))
    struct.pack_into("q", slot.bytes(0, CONTROL_BYTES), 6 * 8, start)
    with suppress(ValueError):
        Header.decode(encoded)
    with suppress(DamagedError):
        slot.sum_up()
        found, reach = slot.verify(), CONTROL_BYTES
        for entry in found.entries:
            assert reach == entry.offset and entry.offset + entry.nbytes <= found.end <= slot.size
            assert slot.tensor(entry).shape == entry.shape
            assert slot.tensor(entry).nbytes == entry.nbytes
            reach += padded(entry.nbytes)


ENTRY = json.loads(lay_out([TensorPart("a", "float32", (2, 3), 24)]).encoded)[0]


@pytest.mark.parametrize(
    "listed",
    [
        {},
        [{**ENTRY, "more": 1}],
        [{**ENTRY, "shape": [1] * 65}],
        [{**ENTRY, "is_buffer": 1}],
        [{**ENTRY, "global_shape": [4, 3]}],
        [{**ENTRY, "global_shape": [4, 3], "global_offset": [3, 0]}],
        [ENTRY, ENTRY],
        [{**ENTRY, "name": "dlr.values"}, {**ENTRY, "name": "dlr.values", "offset": CONTROL_BYTES + 64}],
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense_is_refused(listed: object) -> None:
    data = json.dumps(listed, separators=(",", ":")).encode()
    with pytest.raises(ValueError):
        Header.decode(data)
    with pytest.raises(DamagedError, match="the header cannot be read"):
        slot_with(data, CONTROL_BYTES + 64).header()


@pytest.mark.parametrize(
    "changed", [{"dtype": "load"}, {"dtype": "nothing"}, {"dtype": "int8"}, {"nbytes": 20}, {"shape": [7]}]
)
def test_a_tensor_that_is_not_of_its_type_shape_and_size_is_damaged(changed: dict[str, Any]) -> None:
    data = json.dumps([{**ENTRY, **changed}], separators=(",", ":")).encode()
    with pytest.raises(DamagedError, match="a is not of its type, shape and size"):
        slot_with(data, CONTROL_BYTES + 64).header()


@pytest.mark.parametrize(
    ("start", "length"),
    [(-64, 10), (0, 10), (64, 4096), (1 << 14, 1), (1 << 13, 1 << 14), (2**62, 10), (CONTROL_BYTES, -1)],
)
def test_a_header_that_is_not_within_its_slot_is_damaged(start: int, length: int) -> None:
    slot = slot_with(b"[]", CONTROL_BYTES)
    struct.pack_into("2q", slot.bytes(0, CONTROL_BYTES), 6 * 8, start, length)
    for reading in (slot.header, slot.verify):
        with pytest.raises(DamagedError):
            reading()


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b"[" + b"1," * 50_000 + b"1]", b"9" * 100_000, b'"' + b"a" * 100_000, b"\xff" * 10, b"",
     b"[NaN]", b"[ ]", b"[]\n"],
    ids=lambda data: repr(data[:9]),
)  # fmt: skip
def test_what_is_no_header_is_refused_in_little_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            Header.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_a_header_has_a_largest_size_which_a_state_is_told_of_before_it_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = lay_out([TensorPart("a", "int8", (), 1), TensorPart("b", "int8", (), 1)]).encoded
    monkeypatch.setattr(layout, "MAX_HEADER_BYTES", len(encoded) - 1)
    with pytest.raises(ValueError, match="more than a header has"):
        Header.decode(encoded)
    with pytest.raises(ValueError, match=r"2 tensors take .* bytes to describe, which is too much"):
        lay_out([TensorPart("a", "int8", (), 1), TensorPart("b", "int8", (), 1)])
