"""The exchange of values between ranks: JSON of limited size, so that no rank runs code of another's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from dlr import ranks
from dlr.checkpoint.choosing import Listing
from dlr.checkpoint.outlines import Outline
from dlr.checkpoint.storage import File, Manifest, StorageError
from tests.forks import forks

ROOT = Path(__file__).parents[2]


Act = Callable[[int], Any]
VALUES: list[Any] = [{"größe": [1, None]}, [], "x" * 100_000]


def each(folder: Path, world: int, *acts: Act) -> list[list[str]]:
    """What each rank of a group of processes answers to the acts, one after the other, as text; by act."""
    processes = [forks.Process(target=run, args=(folder, rank, world, acts)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    by_rank = [json.loads((folder / f"{rank}").read_text()) for rank in range(world)]
    return [[*answers] for answers in zip(*by_rank, strict=True)]


def run(folder: Path, rank: int, world: int, acts: tuple[Act, ...]) -> None:
    meet = f"file://{folder / 'meet'}"
    dist.init_process_group(
        "gloo", init_method=meet, rank=rank, world_size=world, timeout=timedelta(seconds=300)
    )
    answers = []
    for act in acts:
        try:
            answers.append(repr(act(rank)))
        except ValueError as error:
            answers.append(str(error))
    (folder / f"{rank}").write_text(json.dumps(answers))
    dist.destroy_process_group()


def gather(rank: int) -> Any:
    return ranks.from_all(VALUES[rank])


def take(rank: int) -> Any:
    return ranks.from_rank_0(VALUES[rank])


def lie(size: int, text: bytes, rank: int) -> Any:
    """Rank 0 sends what `from_rank_0` never does."""
    if rank:
        return ranks.from_rank_0(None)
    dist.broadcast(torch.tensor([size]), src=0)
    if text:
        dist.broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8), src=0)
    return None


def send_odd(exchange: Callable[[object], Any], culprit: int, rank: int) -> Any:
    return exchange({1, 2} if rank == culprit else "x")


@pytest.mark.real
def test_all_ranks_have_the_values_of_all_in_their_order_or_that_of_rank_0(tmp_path: Path) -> None:
    gathered, taken = each(tmp_path, 3, gather, take)
    assert gathered == [repr(VALUES)] * 3
    assert taken == [repr(VALUES[0])] * 3


@pytest.mark.real
def test_what_is_too_large_or_no_json_is_an_error_on_all_ranks_and_none_waits(tmp_path: Path) -> None:
    sizes = (ranks.MOST_BYTES + 1, 1 << 62)
    texts = (b"\x80\x05cos\nsystem\n", b"[" * 100_000, b"\xff")
    culprits = ((ranks.from_all, 1), (ranks.from_rank_0, 0))
    answers = each(
        tmp_path,
        2,
        *(partial(lie, size, b"") for size in sizes),
        *(partial(lie, len(text), text) for text in texts),
        *(partial(send_odd, *culprit) for culprit in culprits),
    )
    for size, (_, answer) in zip(sizes, answers, strict=False):
        limit = f"the exchange takes {size} bytes on each rank and may take 1073741824: pass smaller values"
        assert answer == limit
    for _, answer in answers[2:5]:
        assert answer.startswith("what a rank has sent is no JSON")
    for (_, culprit), of_ranks in zip(culprits, answers[5:], strict=True):
        own, other = of_ranks[culprit], of_ranks[1 - culprit]
        assert own == "a value for other ranks is no JSON: Object of type set is not JSON serializable"
        assert other == f"rank {culprit} has a value that is no JSON: see its error"


def test_one_process_alone_has_its_own_as_json_has_it() -> None:
    assert ranks.from_rank_0((1, 2)) == [1, 2] and ranks.from_all({"a": (1,)}) == [{"a": [1]}]


def test_nothing_of_ours_has_torch_unpickle_what_others_send() -> None:
    calls = re.compile(r"\b(?:\w+_object(?:_list)?|torch\.load|pickle\.loads?)\((?!weights_only=True\)`)")
    torchs = re.compile(r"(?:all_gather|gather|broadcast|scatter|send|recv)_object")
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for folder in ("dlr", "agent", "healthcheck", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for call in calls.findall(path.read_text())
        if "load" in call or torchs.search(call)
    ]
    assert (
        sorted(found)
        == [
            "dlr/checkpoint/in_storage.py: pickle.loads(",  # where the script asks for weights_only=False
            "dlr/checkpoint/in_storage.py: torch.load(",  # by weights_only, unless the script asks for no such limit
            "dlr/checkpoint/values.py: torch.load(",  # of a sparse tensor, by weights_only
            "examples/plain/train.py: torch.load(",  # its own file, by weights_only
        ]
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
fields = st.fixed_dictionaries(
    {},
    optional={
        name: json_values
        for name in ("manifests", "damaged", "refusal", "unreadable", "is_away", "boxes", "names", "places")
    },
)


@given(json_values | fields)
def test_whatever_a_rank_sends_is_a_listing_and_an_outline_or_an_error_that_callers_handle(told: Any) -> None:
    with suppress(StorageError):
        Listing.of(told)
    with suppress(ValueError, TypeError, KeyError):
        Outline.of_wire(told)


def test_listings_and_outlines_come_back_as_they_were() -> None:
    listing = Listing((Manifest("ns/job", 3, 2, "a", (File("a", 1, 2**64 - 1),)),), ("step-2: bad",))
    assert Listing.of(json.loads(json.dumps(asdict(listing)))) == listing
    outline = Outline({((0, 8), (1, 4)): ((0, 4), (1, 2)), (): ()}, "a", "b", "c", "d", "e")
    assert Outline.of_wire(json.loads(json.dumps(outline.to_wire()))) == outline
