"""Leases of a shard set among many hollow workers, in virtual time: `python -m benchmarks.shards`.

The decision, the agents' bookkeeping and the texts of the status are the real ones; processes, agents' clocks
and the API server are not. Workers do elements at speeds that differ by a factor of two, report within
`REPORT_SECONDS` of wanting more and every `PROGRESS_SECONDS` otherwise, and some are killed: what they did
since their last report is done again by others.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.shard_set import Definition
from reconcilers.shards.job_shards import LEAST_SECONDS, SECONDS_PER_WORKER
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import Crew, ShardSet, Voice, voice_of

BEGAN = datetime(2026, 11, 23, tzinfo=UTC)
REPORT_SECONDS = 0.02
PROGRESS_SECONDS = 5.0
REPLACED_SECONDS = 3.0


@dataclass
class Worker:
    index: int
    definition: Definition
    seconds_an_element: float
    incarnation: int = 1
    holding: Holding = field(init=False)
    told: tuple[object, ...] = ()
    in_hand: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.holding = Holding(self.definition)


class Fleet:
    """Everything that happens, as events in the order of their times."""

    def __init__(self, workers: int, size: int, seconds: float, kills_a_minute: float) -> None:
        self.chance = random.Random(1)
        self.definition = Definition("bench", 0, size, "", 3, 0)
        mean = seconds * workers / size
        self.workers = [
            Worker(i, self.definition, mean * self.chance.uniform(0.67, 1.33)) for i in range(workers)
        ]
        self.kills_a_minute = kills_a_minute
        self.voices: dict[int, Voice] = {}
        self.job: tuple[ShardSet, ...] = ()
        self.events: list[tuple[float, int, str, int, int]] = []
        self.now, self.number = 0.0, 0
        self.look_due, self.written_at = False, float("-inf")
        self.reports = self.asking = self.writes = self.done = self.largest = self.kills = 0

    @property
    def wall_time(self) -> datetime:
        return BEGAN + timedelta(seconds=self.now)

    def at(self, seconds: float, what: str, worker: int = 0, incarnation: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, what, worker, incarnation))

    def run(self) -> None:
        for worker in self.workers:
            self.at(self.chance.uniform(0, 1), "progress", worker.index, 1)
        if self.kills_a_minute:
            self.at(60 / self.kills_a_minute, "kill")
        while not (self.job and self.job[0].is_over):
            self.now, _, what, index, incarnation = heapq.heappop(self.events)
            worker = self.workers[index]
            if what == "look":
                self.look()
            elif what == "kill":
                self.kill()
            elif what == "back" or worker.incarnation == incarnation:
                getattr(self, what)(worker)

    def kill(self) -> None:
        self.kills += 1
        worker = self.chance.choice(self.workers)
        worker.incarnation += 1
        worker.holding, worker.in_hand, worker.told = Holding(self.definition), None, ()
        self.wake()
        self.at(REPLACED_SECONDS, "progress", worker.index, worker.incarnation)
        self.at(60 / self.kills_a_minute, "kill")

    def progress(self, worker: Worker) -> None:
        self.report(worker)
        self.at(PROGRESS_SECONDS, "progress", worker.index, worker.incarnation)

    def work(self, worker: Worker) -> None:
        """Ends a part of up to a second, and begins another."""
        if worker.in_hand is not None:
            self.done += worker.in_hand[1] - worker.in_hand[0]
            worker.holding.finish(worker.in_hand)
            worker.in_hand = None
        self.begin(worker)
        if worker.holding.must_tell != worker.told:
            worker.told = worker.holding.must_tell
            self.at(REPORT_SECONDS, "report", worker.index, worker.incarnation)

    def begin(self, worker: Worker) -> None:
        worker.in_hand = worker.holding.take(max(1, int(1 / worker.seconds_an_element)))
        if worker.in_hand is not None:
            elements = worker.in_hand[1] - worker.in_hand[0]
            self.at(elements * worker.seconds_an_element, "work", worker.index, worker.incarnation)

    def report(self, worker: Worker) -> None:
        said = worker.holding.to_status(MAX_SHARDS_TEXT)
        self.voices[worker.index] = voice_of(worker.index, worker.incarnation, said)
        self.reports += 1
        self.asking += said.wants
        if said.wants:
            self.wake()

    def wake(self) -> None:
        if not self.look_due:
            self.look_due = True
            pause = len(self.workers) * SECONDS_PER_WORKER
            since = self.now - self.written_at
            self.at(max(pause - since, 0.0) if pause >= LEAST_SECONDS else 0.01, "look")

    def look(self) -> None:
        self.look_due = False
        alive = {worker.index: worker.incarnation for worker in self.workers}
        decided = lease(self.job, Crew(alive, list(self.voices.values()), len(alive)), self.wall_time)
        if decided == self.job:
            return
        self.job, self.written_at, self.writes = decided, self.now, self.writes + 1
        self.largest = max(self.largest, len(json.dumps([each.to_status().to_wire() for each in decided])))
        leases = {each.worker: each for each in decided[0].leases}
        for worker in self.workers:
            held = leases.get(worker.index)
            worker.holding.follow(held if held and held.incarnation == worker.incarnation else None)
            if worker.in_hand is None:
                self.work(worker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1_800, help="that it takes with nothing lost")
    parser.add_argument("--kills-a-minute", type=float, default=20)
    args = parser.parse_args()
    fleet = Fleet(args.workers, args.elements, args.seconds, args.kills_a_minute)
    fleet.run()
    (over,) = fleet.job
    print(
        f"{args.workers} workers, {args.elements} elements: all {over.done} done after {fleet.now:.0f} s "
        f"(without a loss {args.seconds:.0f}), {fleet.kills} kills, "
        f"{(fleet.done - args.elements) / args.elements:.3%} done twice; {over.last_lease} leases, "
        f"{fleet.asking} reports that ask for more and {fleet.writes} writes of the job, "
        f"{(fleet.asking + fleet.writes) / fleet.now:.1f} a second, beside {fleet.reports - fleet.asking} of "
        f"progress; "
        f"status.shards had {fleet.largest} bytes at most"
    )


if __name__ == "__main__":
    main()
