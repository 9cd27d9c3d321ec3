from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.slots import pages
from agent.slots.format import CommitWord, Header, Mark, TensorPart, lay_out
from agent.slots.pool import NODE_BYTES, Pool, assign, slot_for_replica
from agent.slots.resume import Checkpoint
from agent.slots.slot import Slot
from tests.agent.patience import wait_for

HEADER = lay_out([TensorPart("weights", "int64", (16,), 128)])


def write(slot: Slot, mark: Mark, header: Header = HEADER) -> None:
    slot.begin()
    slot.commit(mark, header)
    slot.sum_up()


def slots(*marks: Mark | None) -> list[Slot]:
    found = []
    for mark in marks:
        slot = Slot(mmap.mmap(-1, 64 << 10))
        if mark is not None:
            write(slot, mark)
        found.append(slot)
    return found


def mark(step: int, rank: int = 0, round_: int = 1) -> Mark:
    return Mark(round_, step, rank, 4)


@pytest.fixture
def pool() -> Pool:
    return Pool(1 << 20, 4)


def test_slots_are_opened_by_path_and_end_with_the_pool(pool: Pool) -> None:
    write(Slot.open(pool.slots[1].path), mark(7))
    assert [(slot, found) for slot, found in pool.with_sums()] == [(pool.slots[1], mark(7))]
    assert pool.find(mark(7)) is pool.slots[1]
    path = pool.slots[1].path
    pool.close()
    assert not os.path.exists(path)  # noqa: PTH110


@pytest.mark.real
def test_pages_are_touched_beforehand_and_what_is_written_meanwhile_stays(pool: Pool) -> None:
    write(pool.slots[0], mark(3))
    pool.touch()
    wait_for(lambda: all(os.stat(slot.path).st_blocks * 512 >= slot.size for slot in pool.slots))  # noqa: PTH116
    pool.slots[0].verify()
    assert pool.slots[0].mark == mark(3)


def test_a_slot_that_is_fetched_into_has_its_pages_first_and_others_have_none_yet(pool: Pool) -> None:
    pool.touch_now(pool.slots[1])
    sizes = [os.stat(slot.path).st_blocks * 512 for slot in pool.slots]  # noqa: PTH116
    assert [size >= pool.slots[0].size for size in sizes] == [False, True, False, False]


def test_parts_of_a_slot_lie_on_all_numa_nodes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of all nodes write into it, and each is as near to its half as the other."""
    monkeypatch.setattr("agent.slots.pool.cpus_by_node", lambda: [{0, 1}, {2, 3}])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    ran_on: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: ran_on.append(cpus))
    pool = Pool(4 * 3 * NODE_BYTES, 4)
    monkeypatch.setattr("agent.slots.pool.populate", lambda _: None)
    pool.touch_now(pool.slots[0])
    assert ran_on == [{0, 1}, {2, 3}, {0, 1}, {0, 1, 2, 3}], "and then wherever the thread may"
    pool.close()


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5\n", {5}), ("\n", set())], ids=["ranges", "one", "memory alone"]
)  # fmt: skip
def test_cpus_of_a_numa_node_are_read_as_the_kernel_writes_them(text: str, cpus: set[int]) -> None:
    assert pages._cpus(text) == cpus


def test_sums_are_added_for_others_where_a_process_was_killed_before(pool: Pool) -> None:
    pool.slots[0].commit(mark(5), HEADER)
    assert not list(pool.with_sums())
    assert [found for _, found in pool.whole()] == [mark(5)]
    assert pool.find_summed(mark(6)) is None
    assert pool.find_summed(mark(5)) is pool.slots[0]
    assert [found for _, found in pool.with_sums()] == [mark(5)]


def test_a_whole_slot_without_a_header_is_damaged(pool: Pool) -> None:
    pool.slots[0].commit(mark(5), HEADER)
    pool.slots[0].bytes(HEADER.end, HEADER.end + 8)[:] = bytes(8)
    assert pool.find_summed(mark(5)) is None
    assert pool.slots[0].commit_word is CommitWord.DAMAGED


def test_what_is_newer_than_what_was_agreed_upon_is_forgotten(pool: Pool) -> None:
    for slot, step in zip(pool.slots, (5, 6, 7), strict=False):
        write(slot, mark(step))
    pool.forget_after(Checkpoint(1, 6, 4))
    assert sorted(found.step for _, found in pool.with_sums()) == [5, 6]
    pool.forget_after(None)
    assert not list(pool.with_sums())


def test_a_rank_writes_beside_what_it_resumes_from_and_over_the_oldest() -> None:
    old, new, empty, replica = slots(mark(5), mark(6), None, mark(6, rank=2))
    assert assign([old, new, empty, replica], [new]) == [[new, empty, old]]
    other, another = slots(mark(7), mark(8))
    pooled = [other, old, another, new, empty, replica]
    assert assign(pooled, [None, None]) == [[empty, old, new], [replica, other, another]]


@pytest.mark.real
def test_ranks_wait_for_slots_of_fetches_that_hang_and_not_for_ever(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool.lock:
        taken = [pool.take(slot) for slot in pool.slots[:2]]
        pool.make_ready(taken[0])  # which gives it back, as soon as it has the lock
        pool.wait_for_slots(1)
        assert pool.taken == [taken[1]]
        pool.take(pool.slots[0])
        monkeypatch.setattr("agent.slots.pool.TIMEOUT_SECONDS", 0.01)
        with pytest.raises(OSError, match="2 of 4 slots in memory wait for peers that are silent"):
            pool.wait_for_slots(1)


def test_a_replica_of_another_world_gives_way() -> None:
    gone, here = slots(mark(9, rank=3, round_=1), mark(1, rank=2, round_=2))
    assert slot_for_replica([gone, here], mark(2, rank=2, round_=2), has_resumed=True) is gone
    gone, gone_too = slots(mark(9, rank=0, round_=1), mark(9, rank=1, round_=1))
    wanted = mark(12, rank=2, round_=2)
    assert slot_for_replica([gone, gone_too], wanted, has_resumed=True) is gone
    assert slot_for_replica([gone, gone_too], wanted, has_resumed=False) is None


MARKS = st.one_of(
    st.none(), st.builds(mark, st.integers(1, 4), rank=st.integers(0, 2), round_=st.integers(1, 2))
)


@given(st.lists(MARKS, max_size=6), st.integers(0, 2))
def test_the_newest_of_each_rank_of_the_newest_round_is_kept(marks: list[Mark | None], rank: int) -> None:
    pooled = slots(*marks)
    round_ = 2
    target = slot_for_replica(pooled, mark(5, rank=rank, round_=round_), has_resumed=True)
    found = [m for m in marks if m is not None]
    if target is not None and target.mark is not None and target.mark.round == round_:
        assert target.mark != max(m for m in found if m.rank == target.mark.rank)
