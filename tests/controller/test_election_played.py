"""Candidates for one Lease that stall, on clocks that run differently, over a network that loses and doubles."""

import copy
import math
from datetime import UTC, datetime

import pytest

from controller.errors import AlreadyExists, Conflict, NotFound
from controller.leader.election import (
    ElectionTiming,
    Move,
    Tenure,
    claim,
    decide,
    read,
    released,
    resigned,
    with_answer,
    with_claim_sent,
)
from tests.controller.lease_api import LeaseApi
from tests.played.network import Faults, request
from tests.played.schedule import Schedule, play_seeds

pytestmark = pytest.mark.played

TIMINGS = (ElectionTiming(), ElectionTiming(6.0, 4.0, 1.0), ElectionTiming(25.0, 20.0, 2.0))
WALL = datetime(2026, 1, 1, tzinfo=UTC)
FAULTY_SECONDS = 120.0
FAIR_SECONDS = 80.0
"""Time in fair weather within which somebody leads: the Lease's duration on the slowest clock, and a few looks."""
WEATHERS = (
    # faults, share of acts before which a candidate stalls, longest stall
    (Faults(delay_seconds=0.5), 0.0, 0.0),
    (Faults(delay_seconds=0.5, drop=0.1, late=0.1, late_seconds=40.0), 0.05, 40.0),
    (Faults(delay_seconds=4.0, drop=0.3, late=0.3, late_seconds=20.0), 0.02, 12.0),
)
FAIR = Faults(delay_seconds=0.05)


class Candidate:
    """A process: its decisions are the product's, its shell is `Elector` in small."""

    def __init__(self, game, name):
        self.game, self.name = game, name
        self.rate = game.schedule.random.choice((0.93, 1.0, 1.07))
        self.tenure = Tenure(name, game.timing)
        self.runs_at = 0.0
        self.is_asking = False
        self.turn()

    def clock(self):
        return self.game.schedule.now * self.rate

    def leads(self):
        """As the guard of writes sees it."""
        return self.clock() < self.tenure.leads_until

    def run(self, name, act):
        """Have it act, as soon as it runs."""
        schedule = self.game.schedule
        _, stalls, longest = self.game.weather
        if schedule.chance(stalls):
            self.runs_at = max(self.runs_at, schedule.now + schedule.random.uniform(0.0, longest))
        schedule.at(max(self.runs_at, schedule.now), f"{self.name} {name}", act)

    def turn(self):
        """Ask, and ask again every now and then, whether there was an answer or not."""
        if self.game.is_over():
            return
        self.run("asks", self.ask)
        self.game.schedule.after(
            self.game.timing.retry_period_seconds / self.rate, f"{self.name}'s turn", self.turn
        )

    def ask(self):
        seen, now = self.tenure.observation, self.clock()
        if self.game.schedule.chance(0.02):
            self.resign()
        elif seen is None or self.game.schedule.chance(0.3) or self.decide(seen, now) is Move.WAIT:
            self.send("looks", self.game.api.read)
        else:
            self.claim(seen, now)

    def decide(self, seen, now):
        return decide(seen, self.name, now, leads=self.leads())

    def claim(self, seen, now):
        self.game.writes += 1
        renewed = f"write {self.game.writes}"
        self.tenure = with_claim_sent(self.tenure, renewed, now)
        lease = claim(
            seen.record, namespace="ns", name="dlr", identity=self.name, timing=self.game.timing, wall=WALL
        )
        lease["spec"]["renewTime"] = renewed
        api = self.game.api
        write = api.replace
        if self.decide(seen, now) is Move.CREATE:
            write, self.game.created_at = api.create, self.game.schedule.now
        self.send("claims", lambda: write(copy.deepcopy(lease)))

    def resign(self):
        seen = self.tenure.observation
        self.tenure = resigned(self.tenure)
        if seen is not None and seen.record is not None and seen.record.holder == self.name:
            lease = released(seen.record, namespace="ns", name="dlr", wall=WALL)
            self.send("resigns", lambda: self.game.api.replace(copy.deepcopy(lease)))

    def send(self, what, act):
        asked_at = self.clock()

        def arrive():
            try:
                return read(act())
            except NotFound:
                return None
            except (Conflict, AlreadyExists) as error:
                return error

        def take_in(seen):
            self.tenure = with_answer(self.tenure, seen, asked_at=asked_at, now=self.clock())
            self.game.check()

        def answer(seen):
            if not isinstance(seen, Exception):
                self.run("takes in", lambda: take_in(seen))

        request(self.game.schedule, self.game.weather[0], f"{self.name} {what}", arrive, answer)


class Game:
    def __init__(self, seed):
        self.schedule = Schedule(seed)
        self.weather = WEATHERS[seed % len(WEATHERS)]
        self.timing = self.schedule.random.choice(TIMINGS)
        self.api = LeaseApi()
        self.writes = 0
        self.wrong = []
        self.candidates = [Candidate(self, name) for name in "abc"[: self.schedule.random.choice((2, 3))]]
        self.ends_at = self.schedule.now + FAULTY_SECONDS + FAIR_SECONDS
        self.schedule.at(self.ends_at - FAIR_SECONDS, "fair weather", self.clear)
        self.created_at = self.led_at = -math.inf
        moment = self.schedule.random.uniform(0.0, 2 * FAULTY_SECONDS)
        self.schedule.after(moment, "somebody deletes the Lease", self.delete)

    def is_over(self):
        return hasattr(self, "ends_at") and self.schedule.now >= self.ends_at

    def delete(self):
        """Delete the Lease once, where all have seen it, and none may be creating it."""
        sights = [each.tenure.observation for each in self.candidates]
        is_settled = self.schedule.now > self.created_at + 2 * self.timing.lease_duration_seconds
        if is_settled and all(seen is not None and seen.record is not None for seen in sights):
            self.api.delete()

    def clear(self):
        self.weather = (FAIR, 0.0, 0.0)

    def check(self):
        leaders = [each for each in self.candidates if each.leads()]
        if len(leaders) > 1:
            self.wrong.append(f"{len(leaders)} lead at {self.schedule.now:.1f}")
        if leaders and self.schedule.now > self.ends_at - FAIR_SECONDS + 40.0:
            self.led_at = self.schedule.now


def play(seed):
    """Play one schedule.

    * No write passes the guards of two at a time: whatever a candidate sends after a stall, its guard is a clock.
    * Once the weather is fair, somebody leads within bounded time.
    """
    game = Game(seed)
    while game.schedule.step():
        game.check()
    if game.led_at == -math.inf:
        game.wrong.append("nobody leads in fair weather")
    return game.wrong


def test_elections():
    play_seeds(play, 60)
