"""A `dlr map` of short tasks among hollow workers with slots, in virtual time: `python -m benchmarks.map`.

As in `benchmarks.shards`, the decision and the agents' bookkeeping are the real ones; processes, the agents'
clocks and the API server are not. A slot takes a task, has it for its time and for what it takes to start a
process, and takes the next. One worker after the other is killed, and is back some seconds later.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agent.shards.holding import Holding
from crds.agent_report import MAX_SHARDS_TEXT
from crds.shard_set import Definition
from dlr.commands.map.manifest import HEARTBEAT_TIMEOUT_SECONDS
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import Crew, ShardSet, Voice, voice_of

NOW = datetime(2026, 11, 23, tzinfo=UTC)
REPORT_SECONDS = 0.02
"""From a slot's asking for more until the controller has the agent's report."""
LOOK_SECONDS = 0.03
"""From there until the agents have the leases."""
PROGRESS_SECONDS = HEARTBEAT_TIMEOUT_SECONDS / 3
"""Between the reports of a worker that wants nothing, and between the renewals of its Lease."""
OVERHEAD_SECONDS = 0.005
"""Of a task: a shell is started, and the agent is told and asked."""
REPLACED_SECONDS = 3.0
WRITES_A_POD = 4
"""With a Pod for each task: it is made, bound, seen to run, seen to end; its Job's writes come on top."""
WRITES_A_LOSS = 6
"""A worker's next incarnation, its Pod (made, bound, running), its status, the job's next world, twice; each
agent's word of that world comes on top."""


@dataclass
class Worker:
    index: int
    definition: Definition
    incarnation: int = 1
    alive: bool = True
    holding: Holding = field(init=False)
    told: tuple[object, ...] = ()
    in_hand: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Lines in hand, by slot."""

    def __post_init__(self) -> None:
        self.holding = Holding(self.definition)


class Fleet:
    """Everything that happens, as events in the order of their times."""

    def __init__(self, workers: int, slots: int, tasks: int, seconds: float, kill_every: float) -> None:
        self.chance = random.Random(1)
        self.slots, self.seconds, self.kill_every = slots, seconds, kill_every
        self.definition = Definition("lines", 0, tasks, "", 2, tasks)
        self.workers = [Worker(index, self.definition) for index in range(workers)]
        self.voices: dict[int, Voice] = {}
        self.job: tuple[ShardSet, ...] = ()
        self.events: list[tuple[float, int, str, Worker, int, int]] = []
        self.now, self.number, self.look_due = 0.0, 0, False
        self.writes = self.done = self.kills = 0
        self.alive_seconds = 0.0
        """Of all workers."""

    def at(self, seconds: float, what: str, worker: Worker, slot: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, what, worker, worker.incarnation, slot))

    def run(self) -> None:
        for worker in self.workers:
            self.at(self.chance.uniform(0, 1), "progress", worker)
        if self.kill_every:
            self.at(self.kill_every, "kill", self.workers[0])
        while not (self.job and self.job[0].is_over):
            then, _, what, worker, incarnation, slot = heapq.heappop(self.events)
            self.alive_seconds += (then - self.now) * sum(each.alive for each in self.workers)
            self.now = then
            if what in ("look", "kill", "back"):
                getattr(self, what)(worker)
            elif worker.incarnation == incarnation and worker.alive:
                getattr(self, what)(worker, slot)

    def kill(self, _worker: Worker) -> None:
        worker = self.chance.choice([each for each in self.workers if each.alive])
        self.kills, worker.alive = self.kills + 1, False
        worker.in_hand.clear()
        self.writes += WRITES_A_LOSS + 2 * len(self.workers)
        self.at(REPLACED_SECONDS, "back", worker)
        self.at(self.kill_every, "kill", worker)
        self.wake()

    def back(self, worker: Worker) -> None:
        worker.incarnation, worker.alive = worker.incarnation + 1, True
        worker.holding, worker.told = Holding(self.definition), ()
        self.at(0.0, "progress", worker)

    def progress(self, worker: Worker, _slot: int) -> None:
        self.report(worker, 0)
        self.writes += 1  # of its Lease
        self.at(PROGRESS_SECONDS, "progress", worker)

    def work(self, worker: Worker, slot: int) -> None:
        """A slot ends its task, and begins another."""
        part = worker.in_hand.pop(slot, None)
        if part is not None:
            self.done += 1
            worker.holding.finish(part)
        self.begin(worker, slot)
        if worker.holding.must_tell != worker.told:
            worker.told = worker.holding.must_tell
            self.at(REPORT_SECONDS, "report", worker)

    def begin(self, worker: Worker, slot: int) -> None:
        part = worker.holding.take(1)
        if part is not None:
            worker.in_hand[slot] = part
            self.at(self.seconds + OVERHEAD_SECONDS, "work", worker, slot)

    def report(self, worker: Worker, _slot: int) -> None:
        said = worker.holding.to_status(MAX_SHARDS_TEXT)
        self.voices[worker.index] = voice_of(worker.index, worker.incarnation, said)
        self.writes += 1
        if said.wants:
            self.wake()

    def wake(self) -> None:
        if not self.look_due:
            self.look_due = True
            self.at(LOOK_SECONDS, "look", self.workers[0])

    def look(self, _worker: Worker) -> None:
        self.look_due = False
        alive = {each.index: each.incarnation for each in self.workers if each.alive}
        decided = lease(self.job, Crew(alive, list(self.voices.values()), len(self.workers)), NOW)
        if decided == self.job:
            return
        self.job, self.writes = decided, self.writes + 1
        leases = {each.worker: each for each in decided[0].leases}
        for worker in self.workers:
            held = leases.get(worker.index)
            worker.holding.follow(held if held and held.incarnation == worker.incarnation else None)
            for slot in range(self.slots if worker.alive else 0):
                if slot not in worker.in_hand:
                    self.work(worker, slot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.1, help="that a task takes")
    parser.add_argument("--kill-every", type=float, default=5, help="seconds; 0: none is killed")
    args = parser.parse_args()
    fleet = Fleet(args.workers, args.slots, args.tasks, args.seconds, args.kill_every)
    fleet.run()
    (over,) = fleet.job
    slot_seconds = fleet.alive_seconds * args.slots
    print(
        f"{args.workers} workers of {args.slots} slots, {args.tasks} tasks of {args.seconds:g} s: all "
        f"{over.done} done after {fleet.now:.0f} s, {fleet.kills} workers killed; "
        f"{fleet.done * args.seconds / slot_seconds:.1%} of the slots' time was spent in tasks, "
        f"{args.tasks * args.seconds / slot_seconds:.1%} in such that count "
        f"({(fleet.done - args.tasks) / args.tasks:.2%} done twice); {over.last_lease} leases, "
        f"{fleet.writes} API writes, {fleet.writes / (args.tasks * WRITES_A_POD):.2%} of a Pod a task"
    )


if __name__ == "__main__":
    main()
