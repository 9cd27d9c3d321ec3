"""What processes are given of a set, with the controller's own decision behind it, over a false network and clock."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.shards.dealing import FAILED_SECONDS, RELEASE_SECONDS, SKIPPED_EPOCH_SECONDS, Dealing, Process
from agent.shards.desk import Desk, _Line
from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.intervals import from_text, minus, union
from crds.leases import Lease
from crds.shard_set import MAX_SHARD_RANGES, SetDefinition
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import SetState, ShardPullers, report_of
from tests.played.schedule import Schedule, play_seeds

NOW = datetime(2026, 11, 23, tzinfo=UTC)
NAMED = {"name": "train", "size": 100, "digest": "0:1", "retries": 3}


def given_a_lease() -> Dealing:
    dealing = Dealing(0, 1)
    dealing.follow([{**NAMED, "leases": "0.1.1=0-49", "leased": 50, "waiting": 50}], 0.0)
    return dealing


def test_what_was_told_to_be_given_back_is_given_to_no_process_that_comes_then() -> None:
    """The report is on its way: another worker may have it already."""
    dealing, first, second = given_a_lease(), Process(), Process()
    dealing.receive(first, {"pull": NAMED, "leaves": True}, 0.0)
    assert dealing.left == [first]
    dealing.release_deserted(0.0)
    dealing.receive(second, {"pull": NAMED, "next": 1}, 0.0)
    dealing.answer_all(0.0)
    (said,) = dealing.to_status() or ()
    assert said.leaves and not dealing.outgoing
    dealing.follow([{**NAMED, "leases": "", "leased": 0, "waiting": 100}], 1.0)
    (said,) = dealing.to_status() or ()
    assert said.wants


def test_a_deserted_lease_is_given_back_after_a_while() -> None:
    dealing, process = given_a_lease(), Process()
    dealing.receive(process, {"pull": NAMED, "next": 1}, 0.0)
    dealing.answer_all(0.0)
    dealing.part_with(process, 1.0)
    assert dealing.seconds_to_wait(1.0) == RELEASE_SECONDS
    for now, leaves in ((1.0 + RELEASE_SECONDS / 2, False), (1.0 + RELEASE_SECONDS, True)):
        dealing.release_deserted(now)
        (said,) = dealing.to_status() or ()
        assert said.leaves is leaves


def test_parts_that_all_fail_are_told_together() -> None:
    dealing, process, soon = given_a_lease(), Process(), []
    dealing.receive(process, {"pull": NAMED, "next": 1}, 0.0)
    for place in range(3):
        dealing.answer_all(0.0)
        dealing.news()
        dealing.receive(process, {"failed": "bad", "part": [place, place + 1], "next": 1}, 0.0)
        soon.append(dealing.news())
    assert soon == [FAILED_SECONDS] * 3
    (said,) = dealing.to_status() or ()
    assert said.failed == "0-2"


def test_a_desk_whose_next_epoch_nobody_begins_waits() -> None:
    """It looked again and again without a pause, once that had taken longer than a refusal may."""
    dealing, process = Dealing(0, 1), Process()
    dealing.follow([{**NAMED, "leased": 0, "waiting": 0}], 0.0)
    dealing.receive(process, {"pull": {**NAMED, "epoch": 1}, "next": 1}, 1.0)
    dealing.answer_all(1.0 + 10 * SKIPPED_EPOCH_SECONDS)
    assert not dealing.outgoing and dealing.seconds_to_wait(100.0) is None


def test_parts_done_while_nobody_answers_cost_no_report_each() -> None:
    """As when the controller is away: 1,000 agents would write to the API server as fast as it answers."""
    holding = Holding(SetDefinition("train", 0, 2_000, "", 3, 0))
    holding.follow(Lease(0, 1, 1, ((0, 800),)))
    news = {holding.urgent}
    while (part := holding.take(1)) is not None:
        holding.finish(part)
        news.add(holding.urgent)
    assert len(news) == 3, "that it works, that it wants more, and that it has nothing left"


@given(
    st.lists(st.integers(0, 2**40), min_size=2, max_size=1_500, unique=True),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([100, MAX_SHARDS_TEXT]),
)
def test_whatever_is_done_and_failed_fits_into_a_report_and_nothing_counts_as_done_that_is_not(
    numbers: list[int], chance: random.Random, all_fail: bool, room: int
) -> None:
    numbers = sorted(numbers)
    holding = Holding(SetDefinition("s", 0, 2**41, "", 1, 0))
    holding.follow(Lease(0, 1, 1, ((0, 2**41),)))
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
    rest, told_failed = from_text(told.rest, MAX_SHARD_RANGES), from_text(told.failed)
    assert not minus(told_failed, union(*((part,) for part in failed)))
    counts_as_done = minus(minus(((0, 2**41),), rest), told_failed)
    assert not minus(counts_as_done, union(*((part,) for part in done)))


class Worker:
    """An agent: its desk in small, and its processes."""

    def __init__(self, game: Game, number: int, incarnation: int = 1) -> None:
        self.game, self.number, self.incarnation = game, number, incarnation
        self.dealing = Dealing(number, incarnation)
        self.is_lost = False
        self.working: dict[Process, bool] = {}
        """Processes here, with whether they have been told that the set is over."""
        for _ in range(game.schedule.random.randint(1, 2)):
            self.start()
        self.report(regular=True)
        game.schedule.after(game.delay, "the job is seen", lambda: self.see(game.sets))

    def start(self) -> None:
        process = Process()
        self.working[process] = False
        self.hear(process, {"pull": self.game.definition, "next": self.game.schedule.random.randint(1, 5)})

    def hear(self, process: Process, said: Mapping[str, Any]) -> None:
        if process in self.working and not self.is_lost:
            self.dealing.receive(process, said, self.game.schedule.now)
            self.turn()

    def see(self, sets: tuple[SetState, ...]) -> None:
        if not self.is_lost:
            self.dealing.follow([each.to_status().to_wire() for each in sets], self.game.schedule.now)
            self.turn()

    def turn(self) -> None:
        """Do as `Desk._serve` after each event."""
        schedule = self.game.schedule
        if self.is_lost:
            return
        self.dealing.release_deserted(schedule.now)
        self.dealing.answer_all(schedule.now)
        outgoing, self.dealing.outgoing = self.dealing.outgoing, []
        for each in outgoing:
            schedule.soon("an answer", lambda each=each: self.take(*each))  # type: ignore[misc]
        if (news := self.dealing.news()) is not None and news < math.inf:
            schedule.after(news, "a report", self.report)
        if (seconds := self.dealing.seconds_to_wait(schedule.now)) is not None:
            schedule.after(seconds + 1e-6, "a wait ends", self.turn)

    def take(self, process: Process, answer: Mapping[str, Any]) -> None:
        """Work on a part: it takes a while, and may fail, or end the process."""
        schedule = self.game.schedule
        if process not in self.working or self.is_lost:
            return
        if "over" in answer:
            self.working[process] = True
        elif "part" not in answer:
            self.game.wrong.append(f"a process is answered {answer}")
        elif schedule.chance(self.game.deaths):
            schedule.after(1.0, "a process dies", lambda: self.die(process))
        else:
            part, asks = answer["part"], {"next": schedule.random.randint(1, 5)}
            said = {"failed": "why", "part": part} if schedule.chance(self.game.failures) else {"done": part}
            schedule.after(
                schedule.random.random(), "a part ends", lambda: self.end(process, said | asks, part)
            )

    def end(self, process: Process, said: Mapping[str, Any], part: tuple[int, int]) -> None:
        if process in self.working and not self.is_lost:
            if "done" in said:
                self.game.done.update(range(*part))
            self.hear(process, said)

    def die(self, process: Process) -> None:
        if self.working.pop(process, None) is not None and not self.is_lost:
            self.dealing.part_with(process, self.game.schedule.now)
            self.start()
            self.turn()

    def report(self, *, regular: bool = False) -> None:
        if self.is_lost or self.game.is_late():
            return
        said = self.dealing.to_status() or ()
        self.sent_at = max(
            getattr(self, "sent_at", 0.0) + 1e-6,
            self.game.schedule.now + self.game.schedule.random.random() * self.game.delay,
        )
        self.game.schedule.at(self.sent_at, "a report arrives", lambda: self.game.note(self, said))
        if regular:
            self.game.schedule.after(10.0, "a regular report", lambda: self.report(regular=True))


class Game:
    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        weather = ((0.01, 0.0, 0.0, 0), (1.0, 0.05, 0.0, 0), (0.3, 0.05, 0.05, 1))[seed % 3]
        self.delay, self.deaths, self.failures, losses = weather
        self.wrong: list[str] = []
        self.done: Counter[int] = Counter()
        self.definition = {"name": "train", "size": 60, "digest": "0:1", "retries": 16}
        self.sets: tuple[SetState, ...] = ()
        self.voices: dict[int, tuple[Any, ...]] = {}
        self.workers: list[Worker] = []
        for number in range(self.schedule.random.randint(1, 3)):
            self.workers.append(Worker(self, number))
        for _ in range(losses):
            self.schedule.after(self.schedule.random.random() * 5, "a Pod is lost", self.lose)

    def is_late(self) -> bool:
        return self.schedule.now > 1_300.0

    def lose(self) -> None:
        lost = self.schedule.random.choice(self.workers)
        lost.is_lost = True
        self.voices.pop(lost.number, None)
        self.workers[self.workers.index(lost)] = Worker(self, lost.number, lost.incarnation + 1)
        self.look()

    def note(self, worker: Worker, said: tuple[Any, ...]) -> None:
        if not worker.is_lost:
            number, incarnation = worker.number, worker.incarnation
            self.voices[number] = tuple(report_of(number, incarnation, each) for each in said)
            self.look()

    def look(self) -> None:
        voices = [voice for said in self.voices.values() for voice in said]
        crew = ShardPullers(
            {each.number: each.incarnation for each in self.workers}, voices, len(self.workers)
        )
        decided = lease(self.sets, crew, NOW)
        if decided != self.sets:
            self.sets = decided
            for worker in self.workers:
                self.schedule.after(
                    self.delay, "the job is seen", lambda worker=worker: worker.see(self.sets)
                )  # type: ignore[misc]


def play(seed: int) -> list[str]:
    """Play one schedule.

    Each element is done at least once, and exactly once unless a Pod is lost, whatever dies, fails or is late; each
    process hears that the set is over; it all comes to an end.
    """
    game = Game(seed)
    game.schedule.run(until=lambda: all(all(each.working.values()) for each in game.workers))
    if missing := set(range(60)) - set(game.done):
        game.wrong.append(f"{sorted(missing)[:5]} are never done")
    twice = [element for element, times in game.done.items() if times > 1]
    if twice and seed % 3 != 2:
        game.wrong.append(f"{twice[:5]} are done twice")
    if game.schedule.now > 1_200.0:
        game.wrong.append("somebody hears too late that the set is over")
    return game.wrong


@pytest.mark.played
def test_sets() -> None:
    play_seeds(play, 60)


@pytest.mark.parametrize("last", ['{"leaves": true}', "nonsense"])
def test_who_leaves_or_makes_no_sense_is_still_answered_what_it_asked_before(last: str) -> None:
    sent: list[bytes] = []
    ask = json.dumps({"checkpoint": NAMED})
    connection: Any = SimpleNamespace(
        recv=lambda _: f"{json.dumps({'pull': NAMED})}\n{ask}\n{last}\n".encode(),
        sendall=sent.append,
        close=lambda: sent.append(b"closed"),
    )
    desk, line = Desk.__new__(Desk), _Line(connection)
    desk.__dict__ |= {
        "_dealing": given_a_lease(),
        "_lines": {line.process: line},
        "_monotonic": lambda: 0.0,
        "_selector": SimpleNamespace(unregister=lambda _: None),
    }
    desk._read(line)
    assert sent == [b'{"undone": "0-49"}\n', b"closed"]
