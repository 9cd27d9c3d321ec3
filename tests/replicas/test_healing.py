"""A state that goes from one group to another, and what is left of the version in which it does."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from dlr.replicas import exchange as exchange_module
from dlr.replicas.agreement import GroupAgreement, MeetingGroup, agree
from dlr.replicas.exchange import BrokenError, Exchange, Seat
from dlr.replicas.healing import Healing
from dlr.replicas.patience import Patience

pytestmark = pytest.mark.real

CPU = torch.device("cpu")
PATIENCE = Patience(lambda: None, 3_600.0, lambda places: None, lambda: None)


class Group:
    """One of two groups, which are threads here."""

    def __init__(self, place: int, store: Store) -> None:
        self._earlier = {*threading.enumerate()}
        """Threads of other tests, which may run on for ever."""
        self.changed = threading.Condition()
        self._overtaken = threading.Event()
        self.exchange = Exchange(
            Seat(1, 0, place, 2), lambda: store, CPU, self._overtaken.is_set, self.changed, PATIENCE
        )
        self.exchange.start()
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def healing(self, agreement: GroupAgreement) -> Healing:
        state = {"model": self.model, "optimizer": self.optimizer}
        return Healing(agreement, self.exchange, state, CPU, self.changed)

    def close(self) -> None:
        """End the version, and wait for all of its threads."""
        self.exchange.close()
        for thread in {*threading.enumerate()} - self._earlier:
            if thread.name.startswith("dlr-replicas"):
                thread.join()

    def overtake(self) -> None:
        with self.changed:
            self._overtaken.set()
            self.changed.notify_all()


@pytest.fixture
def store() -> Store:
    return HashStore()


@pytest.fixture
def without_gc() -> Iterator[None]:
    """Scripts turn it off, or have it run seldom, so that ranks do not wait for each other's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


LEADS_BEHIND = agree([MeetingGroup(trained=True, applied=5, applied_in=1), MeetingGroup()])


def begin(store: Store) -> tuple[Group, Group, Healing, Healing]:
    """Return two groups, and what the first one does to send its state, and the second one to take it."""
    leader, behind = Group(0, store), Group(1, store)
    sent, taken = (group.healing(LEADS_BEHIND) for group in (leader, behind))
    sent.begin()
    taken.begin()
    return leader, behind, sent, taken


def is_broken(act: Callable[[], object]) -> bool:
    """Return whether it is; pytest.raises would keep the frames."""
    try:
        act()
    except BrokenError:
        return True
    return False


def test_parameters_are_those_of_the_beginning_options_those_of_the_average_and_nothing_is_left(
    store: Store, without_gc: None
) -> None:
    leader, behind, sent, taken = begin(store)
    leader.optimizer.param_groups[0]["lr"] = 0.025  # by the script, at the beginning of a step
    sent.wait()
    taken.wait()
    taken.load()
    assert behind.optimizer.param_groups[0]["lr"] == 0.025
    assert torch.equal(leader.model.weight, behind.model.weight)
    left = [*map(weakref.ref, (sent, taken, leader.exchange, behind.exchange))]
    behind.exchange.close()
    leader.close()
    del sent, taken, leader, behind
    assert [each() for each in left] == [None] * 4


def test_nothing_is_left_of_a_version_that_broke(without_gc: None) -> None:
    group = Group(0, Store())
    assert is_broken(partial(group.exchange.meet, MeetingGroup()))
    assert is_broken(group.exchange.vote)
    left = weakref.ref(group.exchange)
    group.close()
    del group
    assert left() is None


def test_both_sides_end_when_the_version_does_before_the_average(store: Store) -> None:
    leader, behind, _, taken = begin(store)
    leader.overtake()
    assert is_broken(taken.wait)
    behind.exchange.close()
    leader.close()


def test_an_exchange_whose_gpu_gives_it_no_stream_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_stream(_: torch.device) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(exchange_module, "own_stream", own_stream)
    group = Group(0, HashStore())
    with pytest.raises(BrokenError, match="unspecified launch failure"):
        group.exchange.meet(MeetingGroup())
    group.close()
