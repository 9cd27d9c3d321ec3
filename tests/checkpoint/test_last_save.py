"""What agents that end write to storage, together, of what is in their memory."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.checkpoints.last_save import carry_out
from agent.slots.format import Mark
from agent.slots.process_files import LastSave, StoragePlace
from agent.slots.resume import Checkpoint
from dlr.checkpoint.last_save import AgentSlots, are_all_here, choose, save_last
from dlr.checkpoint.sharing import SaveError
from dlr.checkpoint.storage import StorageError
from tests.checkpoint.states import assert_whole, load_stored, save, saved, state, steps_in


def mark(step: int, rank: int, size: int = 2, round_: int = 1) -> Mark:
    return Mark(round_, step, rank, size)


def word(agents: int, *marks: Mark, gone: frozenset[int] = frozenset()) -> AgentSlots:
    return AgentSlots(agents, gone, frozenset(marks))


def last_save(
    path: Path, agent: int, *marks: Mark, agents: int = 2, gone: tuple[int, ...] = (), seconds: float = 600
) -> LastSave:
    """Of an agent that has slots with these marks."""
    slots = [(it.round, it.step, it.rank, it.world_size, saved(state(it.step), it).path) for it in marks]
    place = StoragePlace(str(path), "default/llm", 3, "")
    return LastSave("end", place, agent, agents, gone, tuple(slots), seconds)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = last_save(tmp_path, 0, mark(5, 0), gone=(1,))
    assert LastSave.decode(one.encode()) == one
    assert AgentSlots.decode(AgentSlots.of(one).encode()) == word(2, mark(5, 0), gone=frozenset({1}))


def test_all_are_here_who_are_not_lost() -> None:
    one, two = word(3, gone=frozenset({1})), word(3)
    assert not are_all_here({0: one})
    assert are_all_here({0: one, 2: two})
    assert not are_all_here({0: two, 2: two}), "nobody sees the third to be lost"


MARKS = st.sets(
    st.builds(mark, st.integers(1, 4), st.integers(0, 2), st.just(3), st.integers(1, 2)), max_size=12
)


@given(st.dictionaries(st.integers(0, 3), MARKS, max_size=4))
def test_the_newest_whole_checkpoint_is_written_by_who_has_it(held: dict[int, set[Mark]]) -> None:
    choice = choose({agent: word(4, *marks) for agent, marks in held.items()})
    everything = set().union(*held.values()) if held else set()
    found = {Checkpoint.of(it) for it in everything}
    whole = [it for it in found if all(it.part(rank) in everything for rank in range(3))]
    assert (choice is None) == (not whole)
    if choice is not None:
        assert choice.checkpoint == max(whole)
        assert choice.writers.keys() == {0, 1, 2}
        assert all(choice.checkpoint.part(rank) in held[agent] for rank, agent in choice.writers.items())


@pytest.mark.real
def test_agents_that_are_left_write_together(tmp_path: Path) -> None:
    first = last_save(tmp_path, 1, mark(9, 1, 3), mark(8, 1, 3), mark(8, 0, 3), agents=3, gone=(0,))
    second = last_save(tmp_path, 2, mark(9, 2, 3), mark(8, 2, 3), mark(9, 1, 3), agents=3)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(save_last, (second, first))) == [8, 8]
    assert steps_in(tmp_path) == [8]
    load_stored(made := state(0), tmp_path, 8)
    assert_whole(made, 8)
    assert not list(tmp_path.glob("ending-*"))


def test_a_part_that_nobody_has_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    here = last_save(tmp_path, 0, mark(9, 0), gone=(1,))
    with pytest.raises(SaveError, match="no step of all ranks"):
        save_last(here)
    late = last_save(tmp_path, 0, mark(9, 0), seconds=0)
    with pytest.raises(SaveError, match="no step of all ranks"):
        save_last(late)
    assert not steps_in(tmp_path) and not list(tmp_path.rglob("word-*"))


def test_what_storage_has_is_not_written_again(tmp_path: Path) -> None:
    save(tmp_path, 9, "default/llm")
    manifest = next(tmp_path.rglob("manifest.json")).stat().st_mtime_ns
    assert save_last(last_save(tmp_path, 0, mark(9, 0, 1), agents=1)) == 9
    assert next(tmp_path.rglob("manifest.json")).stat().st_mtime_ns == manifest


def test_the_path_of_another_job_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "dlr-job.json").write_text('{"job": "default/other"}')
    with pytest.raises(StorageError, match="default/other"):
        save_last(last_save(tmp_path, 0, mark(9, 0, 1), agents=1, seconds=math.inf))


@pytest.mark.real
def test_the_program_that_an_agent_starts_writes_its_copies_of_the_lost_ones_too_or_says_why_not(
    tmp_path: Path,
) -> None:
    save(tmp_path, 200, "default/llm")
    here = last_save(tmp_path, 0, mark(240, 0), mark(245, 0), mark(235, 1), mark(240, 1), gone=(1,))
    assert carry_out(here) == ""
    assert steps_in(tmp_path) == [240, 200], "of step 245 the lost Pod had the other part"
    load_stored(made := state(0), tmp_path, 240)
    assert_whole(made, 240)
    assert not list(tmp_path.glob("ending-*"))
    assert "no step of all ranks" in carry_out(last_save(tmp_path, 0, mark(250, 0), gone=(1,)))
    assert "not written within 0 s" in carry_out(last_save(tmp_path, 0, mark(250, 0, 1), seconds=0.01))
    assert steps_in(tmp_path) == [240, 200]
