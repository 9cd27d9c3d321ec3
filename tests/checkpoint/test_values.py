"""What may be in a checkpoint: it comes back as it was, and what else a pickle asks for is refused, not done."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import os
import pathlib
import pickle
import sys
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

from agent.slots.format import Mark, TensorPart, lay_out
from agent.slots.slot import Slot
from dlr.checkpoint import Checkpointer, DamagedCheckpointError, MismatchError, values
from dlr.checkpoint.state import RNG, VALUES, capture
from dlr.checkpoint.values import NotAllowedError, TensorReference, load_values, write_values
from tests.checkpoint.states import load, saved, state, tell

many = settings(max_examples=50, deadline=None)


def back(value: Any) -> Any:
    return load_values(write_values(value, {}), TensorReference)


# --- What comes back ------------------------------------------------------------------------------------

zones = st.none() | st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)).map(
    datetime.timezone
)
hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.complex_numbers(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=zones)
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.lists(st.sampled_from(["a", "b c", ".."]), max_size=3).map(lambda parts: pathlib.Path(*parts))
    | st.sampled_from(
        [pathlib.PureWindowsPath("c:/d"), torch.float8_e4m3fn, torch.channels_last, torch.strided]
    )
    | st.sampled_from(
        [torch.Size([2, 3]), torch.device("cpu"), torch.device("cuda:1"), torch.per_tensor_affine]
    )
    | st.sampled_from([numpy.dtype("datetime64[ns]"), numpy.dtype([("a", "f4", (2,)), ("b", "S3")])])
    | st.sampled_from([numpy.float64(0.1), numpy.str_(""), numpy.int8(-3), numpy.bool_(True)])
)
plain = st.recursive(
    hashable | st.binary(max_size=5).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable | st.tuples(hashable, hashable), inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(hashable, inner, max_size=3).map(lambda it: defaultdict(list, it))
        | st.lists(inner, max_size=3).map(deque)
        | st.lists(inner, max_size=3).map(lambda it: deque(it, 2))
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
        | st.lists(hashable, max_size=3).map(Counter)
    ),
    max_leaves=10,
)


@many
@given(value=plain)
def test_any_nest_of_plain_values_comes_back_as_it_was(value: Any) -> None:
    again = back(value)
    assert again == value and type(again) is type(value)
    assert sorted(repr(again)) == sorted(repr(value)), "types within are the same"


@many
@given(array=arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0, max_side=3)))
def test_an_array_comes_back_writable_whatever_its_type_and_shape(array: Any) -> None:
    for each in (array, array.T, array[..., :1] if array.ndim else array):
        again = back(each)
        assert again.dtype == array.dtype and again.tobytes() == each.tobytes()
        assert again.shape == each.shape and again.flags.writeable


class Color(enum.Enum):
    RED = "r"


class Point(namedtuple("Point", "x y")):
    pass


@dataclasses.dataclass
class Settings:
    rate: float
    color: Color = Color.RED


def _reduced(number: int) -> int:
    return number


class Names(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "registered", "missing"),
    [
        (Color.RED, [Color], "Color"),
        (Point(1, 2), [Point], "Point"),
        (Settings(0.1), [Settings, Color], "Settings"),
        (Names(a=1), [Names], "Names"),
        (Color, [Color], "Color"),
        (_reduced, [_reduced], "_reduced"),
        (nn.Linear(1, 1), [], "Linear"),
        (range(3), [range], "range"),
        (numpy.random.default_rng(), [], "Generator"),
        (Settings.__init__, [], "__init__"),
        (defaultdict(_reduced), [_reduced], "_reduced"),
    ],
)
def test_a_class_of_the_scripts_own_is_saved_and_loaded_once_it_is_registered(
    value: Any, registered: list[Any], missing: str
) -> None:
    sentence = (
        rf"^settings\.inner\.1 cannot be saved: \S+{missing} may not be in a checkpoint: call "
        rf"torch\.serialization\.add_safe_globals\(\[{missing}\]\) before load\(\) if you trust it, give the "
        r"Checkpointer weights_only=False if you trust all who can write its checkpoints, or keep it out of "
        r"the state$"
    )
    with pytest.raises(TypeError, match=sentence):
        capture({"settings": {"inner": [1, value]}})
    if registered:
        with torch.serialization.safe_globals(registered):
            written = write_values(value, {})
            again = load_values(written, TensorReference)
            assert type(again) is type(value) and getattr(again, "number", again) == getattr(
                value, "number", value
            )
        with pytest.raises(NotAllowedError, match=f"{missing} may not be in a checkpoint"):
            load_values(written, TensorReference)


_SPARSE = torch.tensor([[0.0, 1, 0, 2], [0, 0, 3, 0]])


@pytest.mark.parametrize(
    "tensor",
    [
        _SPARSE.to_sparse(),
        torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), torch.ones(3), (2,)),  # not coalesced
        nn.Parameter(_SPARSE.to_sparse()),
        _SPARSE.to_sparse_csr(),
        _SPARSE.to_sparse_csc(),
        _SPARSE.to_sparse_bsr((1, 2)),
        _SPARSE.to_sparse_bsc((2, 1)),
        torch.zeros(0, 3).to_sparse(),
    ],
    ids=lambda it: f"{it.layout} of {tuple(it.shape)}",
)
def test_a_sparse_tensor_comes_back(tensor: torch.Tensor) -> None:
    assert repr(back(tensor)) == repr(tensor.detach())


# --- What is refused ------------------------------------------------------------------------------------

ran: list[str] = []
_EVENTS = (
    "os.",
    "subprocess.",
    "socket.",
    "exec",
    "ctypes.",
    "shutil.",
    "code.",
    "marshal.",
)
watching = False


def _watch(event: str, _: Any) -> None:
    if watching and event.startswith(_EVENTS):
        ran.append(event)


sys.addaudithook(_watch)


def canary(*_: Any) -> str:
    ran.append("canary")
    return "sung"


class Canary:
    """Of no registered class."""

    def __new__(cls, *_: Any) -> Canary:
        ran.append("new")
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        ran.append("setstate")

    def __reduce__(self) -> Any:
        return canary, ()


def attempt(data: bytes) -> Any:
    """Load it, and make sure that nothing ran and nothing of what it may name was changed."""
    global watching
    before = {named: dict(vars(named)) for named in (Counter, pathlib.PurePosixPath, TensorReference)}
    of_function = dict(vars(values._array))
    ran.clear()
    watching = True
    try:
        return load_values(data, TensorReference)
    finally:
        watching = False
        assert not ran
        assert all(dict(vars(named)) == attributes for named, attributes in before.items())
        assert vars(values._array) == of_function


def named(module: str, name: str) -> bytes:
    return write_values(module, {})[2:-1] + write_values(name, {})[2:-1] + pickle.STACK_GLOBAL


def of(value: Any) -> bytes:
    """The opcodes of a plain value."""
    return write_values(value, {})[2:-1]


def _whole_pickle(program: bytes) -> bytes:
    return pickle.PROTO + b"\x05" + program + pickle.STOP


_OURS = "dlr.checkpoint.values"
_GLOBALS = [
    ("os", "system"),
    ("builtins", "eval"),
    ("builtins", "getattr"),
    ("builtins", "bytearray"),
    ("builtins", "type"),
    ("functools", "partial"),
    ("pickle", "loads"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("collections", "Counter"),
    ("collections", "deque"),
    ("collections", "defaultdict"),
    ("pathlib", "PosixPath"),
    ("decimal", "Decimal"),
    (__name__, "canary"),
    (__name__, "Canary"),
    (_OURS, "TensorReference"),
    (_OURS, "TensorReference.__init__"),
    (_OURS, "torch.load"),
    (_OURS, "_loaded"),
    (_OURS, "_array"),
    (_OURS, "_dtype"),
    (_OURS, "_scalar"),
    (_OURS, "_put_together"),
]
_ALL_OPCODES = [bytes([code]) for code in sorted(pickle._Unpickler.dispatch)]  # type: ignore[attr-defined]
_ARGUMENTS = [
    (),
    ("id",),
    {},
    {"_": 1},
    [],
    "id",
    b"id",
    1 << 40,
    -1,
    None,
    ("f4", 2),
    (None, {"__code__": 1}),
]
names = st.sampled_from(_GLOBALS).map(lambda it: named(*it))
arguments = st.sampled_from(_ARGUMENTS).map(of)
calls = st.tuples(
    names,
    arguments | st.tuples(names, st.just(pickle.TUPLE1)).map(b"".join),
    st.sampled_from([pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD, pickle.SETITEM, pickle.APPEND]),
).map(b"".join)
noise = (
    st.sampled_from(_GLOBALS).map(lambda it: b"c" + "\n".join((*it, "")).encode())
    | st.sampled_from(_ALL_OPCODES)
    | st.binary(max_size=9)
)
programs = st.lists(calls | calls | names | arguments | noise, max_size=8).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(program=programs)
def test_no_pickle_runs_anything_outside_of_the_list(program: bytes) -> None:
    with suppress(pickle.UnpicklingError):
        attempt(_whole_pickle(program))


class Evil:
    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._reduced = function, args

    def __reduce__(self) -> Any:
        return self._reduced


def _saved(save: Callable[[Any, Any], object], value: Any) -> bytes:
    save(value, data := io.BytesIO()) if save is torch.save else save(data := io.BytesIO(), value)
    return data.getvalue()


_OBJECTS, _EVIL = _saved(numpy.save, numpy.array([None])), _saved(torch.save, Evil(os.getpid))


@pytest.mark.parametrize(
    "program",
    {
        "an attribute of a class": named("collections", "Counter")
        + of(None)
        + of({"update": 1})
        + pickle.TUPLE2
        + pickle.BUILD,
        "an attribute of a function": named(_OURS, "_array") + of((None, {"a": 1})) + pickle.BUILD,
        "a large array of bytes": pickle.BYTEARRAY8 + (1 << 40).to_bytes(8, "little"),
        "large bytes": pickle.BINBYTES8 + (1 << 40).to_bytes(8, "little"),
        "a frame": pickle.FRAME + (1 << 40).to_bytes(8, "little"),
        "a place in the memo": pickle.NONE + pickle.LONG_BINPUT + b"\xff" * 4 + pickle.POP,
        "an array of objects": named(_OURS, "_array") + of((_OBJECTS,)) + pickle.REDUCE,
        "a tensor of a class that is not registered": named(_OURS, "_put_together")
        + of(({}, {}, None, (), ()))
        + pickle.REDUCE,
        "a file of torch's with a stranger's pickle": named(_OURS, "_loaded") + of((_EVIL,)) + pickle.REDUCE,
        "nothing": b"",
    }.items(),
    ids=lambda it: it[0],
)
def test_no_pickle_changes_what_it_names_or_takes_memory_for_what_is_not_there(
    program: tuple[str, bytes],
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(pickle.UnpicklingError):
            attempt(_whole_pickle(program[1]))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


# --- In a training --------------------------------------------------------------------------------------


def slot_with_pickle(name: str, data: bytes | None = None, **rng: Any) -> Slot:
    """A slot as a stranger makes it, sums and all: with another pickle, or other random numbers in it."""
    slot = saved(state(7), Mark(1, 7, 0, 1))
    entry = next(entry for entry in slot.header().entries if entry.name == name)
    if data is None:
        data = write_values({**load_values(slot.data(entry), TensorReference), **rng}, {})
    slot.bytes(entry.offset, entry.offset + len(data))[:] = data
    slot.commit(Mark(1, 7, 0, 1), slot.header())
    slot.sum_up()
    return slot


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Slot], Checkpointer]]:
    """A training that the agent has given a slot to go on from."""
    made: list[Checkpointer] = []

    def begin(slot: Slot) -> Checkpointer:
        resume = {"round": 1, "step": 7, "world_size": 1, "slot": slot.path}
        tell(monkeypatch, tmp_path, resume=resume)
        made.append(Checkpointer(tmp_path / "path", state(0), persist_every=None))
        return made[-1]

    yield begin
    for checkpointer in made:
        checkpointer.close()


@pytest.mark.parametrize("name", [VALUES, RNG])
def test_a_slot_with_a_strangers_pickle_is_refused_with_a_sentence_and_runs_nothing(
    name: str, resumed: Callable[[Slot], Checkpointer], tmp_path: Path
) -> None:
    evil = pickle.dumps(Evil(os.system, f"touch {tmp_path}/ran"))
    checkpointer = resumed(slot_with_pickle(name, evil))
    with pytest.raises(
        MismatchError, match=r"^the checkpoint step 7 in memory is refused: \S+\.system may not be in a"
    ):
        checkpointer.load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"python": (3, (1,) * 3, None)},
        {"torch": b"\1" * 10},
        {"numpy": ("MT19937", numpy.zeros(624, "u4"), 1 << 20, 0, 0.0)},
        {"numpy": 3},
    ],
    ids=str,
)
def test_a_slot_whose_random_numbers_are_garbage_is_damaged(
    change: dict[str, Any], resumed: Callable[[Slot], Checkpointer]
) -> None:
    with pytest.raises(DamagedCheckpointError, match="the random numbers cannot be set: "):
        resumed(slot_with_pickle(RNG, **change)).load()


# --- Headers that do not fit ----------------------------------------------------------------------------


def slot_with(change: Callable[[list[TensorPart]], list[TensorPart]]) -> Slot:
    """A stranger's slot for a state with `model`, whose header differs from what the state has."""
    captured = capture({"model": nn.Linear(2, 2, bias=False)})
    of_pickles = [TensorPart(name, "uint8", (16384,), 16384) for name in captured.pickles]
    header = lay_out(change([TensorPart("model.weight", "float32", (2, 2), 16), *of_pickles]))
    slot = Slot.create("stranger", header.slot_bytes)
    for entry in header.entries:
        if data := captured.pickles.get(entry.name):
            slot.bytes(entry.offset, entry.offset + len(data))[:] = data
    slot.commit(Mark(1, 7, 0, 1), header)
    slot.sum_up()
    return slot


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (TensorPart("model.weight", "float32", (1,), 4), r"model\.weight is float32\[1\] in the checkpoint"),
        (
            TensorPart("model.weight", "int32", (2, 2), 16),
            r"model\.weight is int32\[2, 2\] in the checkpoint",
        ),
        (
            TensorPart("model.weight", "float32", (1, 2), 8, (2, 2), (1, 0)),
            r"has \[2, 2\] of model\.weight here, and \[1, 2\]",
        ),
        (TensorPart("model.other", "float32", (2, 2), 16), r"only the model has model\.weight"),
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_the_state_is_a_mismatch_and_changes_nothing(
    weight: TensorPart, sentence: str
) -> None:
    slot = slot_with(lambda parts: [weight, *parts[1:]])
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.clone()
    with pytest.raises(MismatchError, match=sentence):
        load({"model": model}, slot)
    assert torch.equal(model.weight, before)
