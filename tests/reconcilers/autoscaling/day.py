"""A job and a cluster whose other load comes and goes, in virtual time; the real decision grows the job.

One node takes one worker, or one Pod of others. Others come first: where they find no node, they take that of an
extra worker. A Pod has its node a second after it is made, if there is one, and is ready some seconds later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from crds.job_spec import Opportunistic
from crds.job_status import GrowthStatus
from reconcilers.autoscaling.opportunity import Room, next_step
from reconcilers.autoscaling.usage import MIN_STEPS, Rate, marginal_efficiency
from tests.reconcilers.build import NOW

PLACED_SECONDS = 1
READY_SECONDS = 20
PAUSE_SECONDS = 10
"""Of a restart: nobody trains."""


@dataclass(eq=False)
class Extra:
    made: int
    placed: int | None = None
    trains: bool = False
    taken: bool = False
    trained_seconds: int = 0


@dataclass(frozen=True)
class Growth:
    """One restart, for some newcomers."""

    before: int
    """Workers that paused for it."""
    newcomers: list[Extra]

    @property
    def paid(self) -> bool:
        """Whether the newcomers, in all their time, trained for longer than the others paused."""
        return sum(each.trained_seconds for each in self.newcomers) > PAUSE_SECONDS * self.before


@dataclass
class Day:
    """One job on `base` nodes of its own, and `nodes` that it shares with others."""

    base: int
    nodes: int
    policy: Opportunistic
    speed: Callable[[int], float] = lambda workers: 1.0
    """Steps a second of a world, whose steps have samples in proportion to its workers."""
    now: int = 0
    load: int = 0
    """Nodes that others have."""
    extra: list[Extra] = field(default_factory=list)
    world: int = 0
    formed: int = 0
    asked: int = 0
    growths: list[Growth] = field(default_factory=list)
    restarts: int = 0
    free_seconds: float = 0.0
    used_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.known = GrowthStatus(base=self.base, replicas=self.base)
        self.rates: dict[int, Rate] = {}
        self.world = self.base
        self._members: list[Extra] = []
        """The extra workers of the world."""

    @property
    def count(self) -> int:
        return self.base + len(self.extra)

    @property
    def useless(self) -> int:
        """Restarts for newcomers that did not train for as long as it cost."""
        return sum(not growth.paid for growth in self.growths)

    def live(self, seconds: int, load_at: Callable[[int], int]) -> None:
        for _ in range(seconds):
            self._second(load_at(self.now))
            self.now += 1

    def _second(self, load: int) -> None:
        self.load = min(load, self.nodes)
        self._preempt()
        self._place()
        self._decide()
        self._form()
        training = self.now - self.formed >= PAUSE_SECONDS
        if training:
            rate = self.rates.get(self.world, Rate(self.world))
            steps, speed = rate.steps + 1, self.speed(self.world)
            self.rates[self.world] = Rate(self.world, steps, rate.seconds + 1 / speed)
            for each in self._members:
                each.trained_seconds += 1
        self.free_seconds += self.nodes - self.load
        self.used_seconds += sum(each.placed is not None and not each.taken for each in self.extra)

    def _preempt(self) -> None:
        placed = [each for each in self.extra if each.placed is not None and not each.taken]
        for each in placed[self.nodes - self.load :]:
            each.taken = True

    def _place(self) -> None:
        held = sum(each.placed is not None and not each.taken for each in self.extra)
        for each in self.extra:
            due = self.now - each.made >= PLACED_SECONDS
            if each.placed is None and not each.taken and due and held < self.nodes - self.load:
                each.placed, held = self.now, held + 1

    def _decide(self) -> None:
        room = self.room()
        step = next_step(self.policy, self.known, room, NOW + timedelta(seconds=self.now))
        self.known = step.known
        assert self.base <= step.count <= room.most and (step.count - self.base) % room.unit == 0
        if step.count == self.count:
            return
        if step.count > self.count:
            self.extra += [Extra(self.now) for _ in range(step.count - self.count)]
        else:
            order = sorted(self.extra, key=lambda e: (not e.taken, e.placed is not None, e.trains))
            for each in order[: self.count - step.count]:
                self.extra.remove(each)
        self.asked = self.now

    def _form(self) -> None:
        """At once without who is gone; with newcomers when none is still on its way to be ready."""
        lasting = [each for each in self.extra if each.trains and not each.taken]
        ready = [
            each
            for each in self.extra
            if each.placed is not None and not each.taken and self.now - each.placed >= READY_SECONDS
        ]
        coming = [e for e in self.extra if e.placed is not None and not e.taken and e not in ready]
        members = lasting if coming else ready
        if members == self._members:
            return
        newcomers = [each for each in members if not each.trains]
        if lasting == self._members:  # else it had to restart without them, too
            self.growths.append(Growth(self.world, newcomers))
        for each in newcomers:
            each.trains = True
        self._members, self.world = members, self.base + len(members)
        self.formed, self.restarts = self.now, self.restarts + 1

    def room(self) -> Room:
        alive = [each for each in self.extra if not each.taken]
        unplaced = [each for each in alive if each.placed is None]
        stuck = sum(self.now - each.made >= PLACED_SECONDS for each in unplaced)
        starting = sum(each.placed is not None and not each.trains for each in alive)
        training = self.now - self.formed >= PAUSE_SECONDS
        rate, known = self.rates.get(self.world), self.known.grown_from
        return Room(
            count=self.count,
            most=self.base + self.nodes,
            unit=1,
            asked_seconds=float(self.now - self.asked),
            is_steady=training and self.world == self.count,
            stuck=stuck,
            lost=len(self.extra) - len(alive),
            on_their_way=len(unplaced) - stuck,
            starting=starting,
            world=self.world,
            trained_seconds=float(self.now - self.formed) if self.world > self.base else 0.0,
            is_measured=rate is not None and rate.steps >= MIN_STEPS,
            efficiency=marginal_efficiency(self.rates, known, self.world) if known else None,
            restart_seconds=float(PAUSE_SECONDS),
        )


def random_load(seed: int, nodes: int, mean_seconds: float) -> Callable[[int], int]:
    """Jobs of others, of some nodes each, that come and go as they like."""
    chance = random.Random(seed)
    ends: list[tuple[float, int]] = []
    comes = [chance.expovariate(1 / mean_seconds)]

    def at(second: int) -> int:
        ends[:] = [(end, size) for end, size in ends if end > second]
        while comes[0] <= second:
            ends.append((second + chance.expovariate(1 / (3 * mean_seconds)), chance.randint(1, nodes // 2)))
            comes[0] += chance.expovariate(1 / mean_seconds)
        return min(sum(size for _, size in ends), nodes)

    return at
