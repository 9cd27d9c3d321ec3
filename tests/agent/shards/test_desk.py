"""Processes that pull from an agent's desk, with the controller's own decision behind it."""

from __future__ import annotations

import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.shards import desk as desk_module
from agent.shards.desk import Desk
from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.intervals import from_text, minus, union
from crds.leases import Lease
from crds.shard_set import ENV_SHARDS_SOCKET, MAX_SHARD_RANGES, MAX_SHARD_SETS, Definition
from crds.shard_set_status import ShardSetStatus
from dlr.shards import ShardsError, pull
from reconcilers.shards.sets import of_status
from tests.agent.shards.conftest import Job

pytestmark = pytest.mark.real

WAIT_SECONDS = 300


def at_once(work: Callable[[], None], number: int) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_processes_share_what_their_worker_holds(alone: Job) -> None:
    done: list[int] = []

    def work() -> None:
        for part in pull("train", 1_000, size=3):
            done.extend(part)

    at_once(work, 3)
    assert sorted(done) == list(range(1_000))
    assert alone.sets[0].done == 1_000
    assert alone.writes < 60


def test_every_epoch_is_pulled_once(alone: Job) -> None:
    for epoch in range(3):
        assert sorted(element for part in pull("train", 20, epoch=epoch) for element in part) == list(
            range(20)
        )
    assert alone.sets[0].definition.epoch == 2
    assert list(pull("train", 20, epoch=1)) == [], "that one is over"


def test_several_sets_beside_each_other(alone: Job) -> None:
    pairs = zip(pull("a", 30), pull("b", 30), strict=True)
    assert [(left[0], right[0]) for left, right in pairs] == [(n, n) for n in range(30)]
    assert {each.definition.name: each.done for each in alone.sets} == {"a": 30, "b": 30}


def test_what_a_process_had_in_hand_is_done_by_the_next(alone: Job) -> None:
    first = pull("train", 10)
    begun = next(first)
    first._source._socket.close()  # type: ignore[union-attr]  # as a killed process's
    first._source._answers.close()  # type: ignore[union-attr]
    assert begun[0] in [part[0] for part in pull("train", 10)]
    assert alone.sets[0].done == 10


def test_who_leaves_gives_back_what_it_holds(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(0).path)
    leaving = pull("train", 100)
    next(leaving)
    leaving.close()
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(1).path)
    job.show()
    assert sorted(part[0] for part in pull("train", 100)) == list(range(100))


def test_a_deserted_lease_is_given_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "RELEASE_SECONDS", 0.01)
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(0).path)
    deserting = pull("train", 100)
    next(deserting)
    deserting._source._socket.shutdown(2)  # type: ignore[union-attr]
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(1).path)
    job.show()
    assert sorted(part[0] for part in pull("train", 100)) == list(range(100))


def test_a_lease_that_comes_after_who_wanted_it_has_left_goes_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "RELEASE_SECONDS", 0.01)
    definition = {"name": "train", "epoch": 0, "size": 10, "digest": "0:1", "retries": 3, "maxFailed": 0}
    held = {**definition, "leases": "0.1.1=0-9", "leased": 10, "lastLease": 1}
    job.sets = (of_status(TypeAdapter(ShardSetStatus).validate_python(held)),)
    job.add(0)
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(1).path)
    job.show()
    assert sorted(part[0] for part in pull("train", 10)) == list(range(10))


def test_a_lost_workers_rest_is_done_by_the_others(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(0).path)
    lost = pull("train", 100)
    next(lost)
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(1).path)
    job.show()
    job.remove(0)
    assert sorted(part[0] for part in pull("train", 100)) == list(range(100))


def test_a_function_that_always_fails_on_one_element(alone: Job, capsys: pytest.CaptureFixture[str]) -> None:
    pulled = pull("train", 20, retries=2, max_failed=1)
    for part in pulled:
        with part:
            assert part[0] != 7, "seven is bad"
    assert pulled.failed == [7]
    assert alone.sets[0].reason.startswith("AssertionError: seven is bad")
    assert capsys.readouterr().err.count("Traceback") == 3


def test_more_than_may_fail_is_an_error_that_names_the_first(alone: Job) -> None:
    with pytest.raises(
        ShardsError, match=r"1 element failed more than 0 times, and max_failed is 0; .*: bad$"
    ):
        for part in pull("train", 20, retries=0):
            if part[0] == 7:
                part.fail("bad")


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"items": 21}, "was begun with 20 elements, and this process names 21"),
        ({"items": list(range(20))}, "other elements, or in another order"),
        ({"items": 20, "retries": 1}, "all workers have to name the same"),
        ({"items": 20, "epoch": 1}, "pull one epoch after the other"),
    ],
)
def test_who_names_the_set_differently_is_told_so(
    alone: Job, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr(desk_module, "SKIPPED_EPOCH_SECONDS", 0.01)
    begun = pull("train", 20)
    next(begun)
    with pytest.raises(ShardsError, match=sentence):
        next(pull("train", **other))


def test_one_set_too_many(alone: Job) -> None:
    for number in range(MAX_SHARD_SETS):
        assert len(list(pull(f"set-{number}", 1))) == 1
    with pytest.raises(ShardsError, match="use epochs of one set"):
        next(pull("one-more", 1))


@pytest.mark.parametrize("items", [{"a", "b"}, {"a": 1}, "files.txt", b"files"])
def test_what_has_a_length_but_is_no_list_is_refused(items: Any) -> None:
    with pytest.raises(ShardsError, match=f"{type(items).__name__} is no list of elements"):
        pull("files", items)


def test_nothing_and_very_much(alone: Job) -> None:
    assert list(pull("nothing", 0)) == []
    much = pull("much", 10**12, size=10**9)
    assert len(next(much)) == 10**9
    much.close()
    assert alone.sets[0].definition.size == 10**12


def test_an_agent_that_is_gone(alone: Job) -> None:
    pulling = pull("train", 20)
    next(pulling)
    alone.remove(0)
    with pytest.raises(ShardsError, match="the agent of this Pod does not answer"):
        next(pulling)


def test_parts_done_while_nobody_answers_cost_no_report_each() -> None:
    """As when the controller is away: 1,000 agents would write to the API server as fast as it answers."""
    holding = Holding(Definition("train", 0, 2_000, "", 3, 0))
    holding.follow(Lease(0, 1, 1, ((0, 800),)))
    news = {holding.must_tell}
    while (part := holding.take(1)) is not None:
        holding.finish(part)
        news.add(holding.must_tell)
    assert len(news) == 3, "that it works, that it wants more, and that it has nothing left"


def test_a_desk_whose_next_epoch_nobody_begins_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked again and again without a pause, once that had taken longer than a refusal may."""
    monkeypatch.setattr(desk_module, "SKIPPED_EPOCH_SECONDS", 0.01)
    over = {"name": "train", "size": 10, "digest": "0:1", "retries": 3, "leased": 0, "waiting": 0}
    desk = Desk(0, 1, monotonic=lambda: 100.0)
    wanted = Definition("train", 1, 10, "0:1", 3, 0)
    asking = desk_module._Process(socket.socket(), definition=wanted, asks_for=1, asked_at=1.0)
    try:
        desk._follow([over])
        desk._sets["train", 1] = desk_module._Set(Holding(wanted), [asking])
        desk._answer_all()
        assert asking.asks_for, "it still waits"
        assert desk._seconds_to_wait() is None
    finally:
        asking.connection.close()
        desk.stop()


NAMED = b'{"pull": {"name": "other", "size": 9}}\n'


@pytest.mark.parametrize(
    "text",
    [
        b"[]\n",
        b"[" * 60_000 + b"\n",
        b'{"next": Infinity}\n',
        b'{"restore": 1e999, "undone": ""}\n',
        b'{"done": [Infinity, 2]}\n',
        b'{"done": []}\n',
        b'{"restore": 9, "undone": "z!"}\n',
        NAMED,
        b"\xff\xfe\n",
        b'{"leaves": true}\n' + NAMED,
    ],
)
def test_a_process_that_says_what_makes_no_sense_is_left_and_the_others_go_on(
    alone: Job, text: bytes
) -> None:
    confused, other = pull("train", 20), pull("train", 20)
    next(confused), next(other)
    confused._source._socket.sendall(text)  # type: ignore[union-attr]
    with pytest.raises(ShardsError, match="the agent of this Pod does not answer"):
        for _ in range(20):
            next(confused)
    assert next(other)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_desk_that_ends_by_a_fault_of_its_own_leaves_nobody_waiting(
    alone: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling = pull("train", 20)
    next(pulling)
    monkeypatch.setattr(alone.desks[0], "_answer_all", lambda: 1 / 0)
    with pytest.raises(ShardsError, match="the agent of this Pod does not answer"):
        next(pulling)


def test_a_long_path_for_temporary_files_keeps_no_agent_from_starting(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(0).path)
    assert [part[0] for part in pull("train", 3)] == [0, 1, 2]
    assert not any(long.iterdir())


def test_what_was_told_to_be_given_back_is_given_to_no_process_that_comes_then() -> None:
    """The report is on its way: another worker may have it already."""
    named = {"name": "train", "size": 100, "digest": "0:1", "retries": 3}
    held = {**named, "leases": "0.1.1=0-49", "leased": 50, "waiting": 50}
    desk = Desk(0, 1)
    first, second = (desk_module._Process(socket.socket()) for _ in range(2))
    try:
        desk._follow([held])
        desk._hear(first, {"pull": named, "leaves": True})
        desk._release_deserted()
        desk._hear(second, {"pull": named, "next": 1})
        (chosen,) = desk._sets.values()
        assert chosen.holding.to_status(999).leaves and desk._answer(chosen, second) is None
        desk._follow([{**named, "leases": "", "leased": 0, "waiting": 100}])
        assert chosen.holding.to_status(999).wants
    finally:
        second.connection.close()
        desk.stop()


def test_who_finds_no_more_open_files_is_turned_away_and_the_desk_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(0, 1)
    theirs, ours = socket.socketpair()
    answers: list[Any] = [(ours, ""), OSError(24, "Too many open files")]

    class Server:
        def accept(self) -> Any:
            if isinstance(answer := answers.pop(), OSError):
                raise answer
            return answer

    try:
        with monkeypatch.context() as patched:
            patched.setattr(desk, "_server", Server())
            desk._accept()
        assert theirs.recv(1) == b"", "it hears that nobody serves it"
        os.fstat(desk._spare_fd)
    finally:
        theirs.close()
        desk.stop()


def test_parts_that_all_fail_are_told_together() -> None:
    named = {"name": "train", "size": 100, "digest": "0:1", "retries": 3}
    desk = Desk(0, 1)
    theirs, ours = socket.socketpair()
    process = desk_module._Process(ours)
    try:
        desk._follow([{**named, "leases": "0.1.1=0-49", "leased": 50, "waiting": 50}])
        desk._hear(process, {"pull": named, "next": 1})
        soon = []
        for place in range(3):
            desk._answer_all()
            desk._news()
            desk._hear(process, {"failed": "bad", "part": [place, place + 1], "next": 1})
            soon.append(desk._news())
        assert soon == [desk_module.FAILED_SECONDS] * 3
        (said,) = desk.to_status() or ()
        assert said.failed == "0-2"
    finally:
        theirs.close()
        ours.close()
        desk.stop()


parts_of_a_lease = st.lists(st.integers(0, 2**40), min_size=2, max_size=1_500, unique=True)


@settings(deadline=None)
@given(
    parts_of_a_lease,
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([100, MAX_SHARDS_TEXT]),
)
def test_whatever_is_done_and_failed_fits_into_a_report_and_nothing_counts_as_done_that_is_not(
    numbers: list[int], chance: random.Random, all_fail: bool, room: int
) -> None:
    numbers = sorted(numbers)
    elements = ((0, 2**41),)
    holding = Holding(Definition("s", 0, 2**41, "", 1, 0))
    holding.follow(Lease(0, 1, 1, elements))
    done, failed = [], []
    for part in zip(numbers[::2], numbers[1::2], strict=False):
        if all_fail or chance.random() < 0.5:
            holding.fail(part, "why")
            failed.append(part)
        else:
            holding.finish(part)
            done.append(part)
    told = holding.to_status(room)
    assert len(told.rest) + len(told.failed) <= room
    rest, told_failed = from_text(told.rest), from_text(told.failed)
    assert not minus(told_failed, union(*((part,) for part in failed)))
    counts_as_done = minus(minus(elements, rest), told_failed)
    assert not minus(counts_as_done, union(*((part,) for part in done)))


@pytest.mark.parametrize("within", [1e300, 1e10, "NaN", "-1e300"])
def test_no_wait_that_a_process_names_ends_the_desk(alone: Job, within: object) -> None:
    waits, other = pull("waits", 1), pull("other", 20)
    next(waits)
    text = f'{{"next": 1, "within": {within}}}\n'.encode()
    waits._source._socket.sendall(text)  # type: ignore[union-attr]
    assert len(list(other)) == 20


def test_a_report_has_no_more_ranges_than_the_controller_reads() -> None:
    """In a pattern, any number of them fits into a few characters."""
    holding = Holding(Definition("s", 0, 2**41, "", 1, 0))
    holding.follow(Lease(0, 1, 1, ((0, 2**41),)))
    for place in range(0, 2 * MAX_SHARD_RANGES + 20, 2):
        holding.finish((place, place + 1))
    told = holding.to_status(MAX_SHARDS_TEXT)
    rest = from_text(told.rest, MAX_SHARD_RANGES)
    assert not minus(
        minus(((0, 2**41),), rest), tuple((at, at + 1) for at in range(0, 2 * MAX_SHARD_RANGES + 20, 2))
    )
