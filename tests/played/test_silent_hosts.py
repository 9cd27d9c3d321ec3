"""Lives of jobs whose hosts fall silent, one by one or at once, with the leader's or without, and whose links break.

What holds of any life holds of these too (`tests/played/jobs.py`): no step of a round ends once a later one has begun, no
round has two lists of members, and nobody is blamed whom nothing has befallen. Beyond that,

* a worker whose host has lost its power is found lost within LOSS_SECONDS, and within LEADER_SECONDS where the leader
  was on it;
* a link that is broken, one way or both, between two hosts that live costs one round at most, and no Pod.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Any

import pytest

from reconcilers.runtime.kinds import ELASTICWORKERS
from tests.played.cluster import Disturbances
from tests.played.jobs import BEFALLS, Life
from tests.played.schedule import BY_HAND, play_seeds

pytestmark = [pytest.mark.played, pytest.mark.timeout(0 if BY_HAND else 900)]
LOSS_SECONDS = 4.5
"""The peers' 2 s, and half a second until they look; 0.5 s of the controller's attempt to connect, and two looks of it."""
LEADER_SECONDS = 22.0
"""The 17 s until another one leads, 3 s of contact with the API server, and its looks."""
SEEDS = 16


class SilentLife(Life):
    """A life in which hosts fall silent."""

    def __init__(
        self, seed: int, acts: tuple[Callable[[Any], bool], ...], *, disturbed: bool = False
    ) -> None:
        super().__init__(seed)
        self._draw = Random(f"silent life {seed}")
        self.is_contested = False
        self._acts = acts
        if not disturbed:
            self.cluster.disturbances = Disturbances()
            self.is_undisturbed = True
        self.cluster.last_step += 40
        self.late: list[str] = []
        """Losses that were noticed late."""
        self.hosts_lost = 0

    def befall(self) -> None:
        for act in self._acts:
            self._at(self._draw.uniform(12.0, 50.0), act.__name__, act)

    def hosts(self) -> list[str]:
        return sorted({agent.host for agent in self.cluster.agents.values() if agent.lives})

    def power_off(self) -> bool:
        """A host of a world that trains loses its power."""
        cluster, training = self.cluster, self._training()
        if training is None or not training.step or self.hosts_lost > 1:
            return False
        hosts = sorted({part.agent.host for part in training.parts.values()} - cluster.hosts.cut_off)
        is_first = not self.hosts_lost
        if len(hosts) < 2:
            return False
        host, leads = self._draw.choice(hosts), cluster.leader_host
        victims = [
            agent.me.worker_name for agent in cluster.agents.values() if agent.lives and agent.host == host
        ]
        for name in victims:
            self._lose(name)
            self.lost_in_silence.append(name)
        self.hosts_lost += 1
        seconds = LEADER_SECONDS if host == leads else LOSS_SECONDS
        members = [m for m, part in training.parts.items() if part.agent.host == host]
        cluster.power_off(host)
        if self.is_undisturbed and is_first and len(self._acts) == 1:
            cluster.schedule.after(seconds, "the loss is known", lambda: self._expect_lost(members))
        return True

    def power_off_two(self) -> bool:
        """Two hosts lose their power at once, as those of a rack do; one, where only two train."""
        first = self.power_off()
        self.power_off()
        return first

    def power_off_with_leader(self) -> bool:
        training = self._training()
        if training is None or not training.step:
            return False
        hosts = sorted({part.agent.host for part in training.parts.values()})
        self.cluster.leader_host = self._draw.choice(hosts)
        return self.power_off()

    def _expect_lost(self, members: list[Any]) -> None:
        for member in members:
            worker = self.cluster.api.get(ELASTICWORKERS, f"j-worker-{member.index}")
            if worker["spec"]["incarnation"] == member.incarnation and worker["status"]["phase"] == "Running":
                self.late.append(f"{member} is not found lost {self.cluster.api.seconds:.1f}")

    def cut_off(self) -> bool:
        """A host is cut off from all others for a while, and lives on."""
        hosts = self.hosts()
        if not hosts or self.cluster.hosts.cut_off or self.cluster.hosts.broken:
            return False
        host = self._draw.choice(hosts)
        for agent in self.cluster.agents.values():
            if agent.lives and agent.host == host:
                self._lose(agent.me.worker_name)
                self.lost_in_silence.append(agent.me.worker_name)
        self.cluster.cut_off(host)
        self._at(self._draw.choice((1.0, 3.0, 20.0)), "mended", lambda life: life.cluster.mend())
        return True

    def break_link(self) -> bool:
        """A link between two hosts carries nothing for a while, one way or both; the leader may be on one of them."""
        pairs = list(permutations(self.hosts(), 2))
        if not pairs or self.cluster.hosts.cut_off or self.cluster.hosts.broken:
            return False
        one, other = self._draw.choice(pairs)
        if self._draw.random() < 0.5 and self.cluster.leader_host == "elsewhere":
            self.cluster.leader_host = one
            self.cluster.kill_controller(0.0)
        both = {(one, other), (other, one)}
        self.cluster.hosts.broken |= both if self._draw.random() < 0.5 else {(one, other)}
        self.cluster.wake_agents()
        self._at(self._draw.uniform(1.0, 15.0), "mended", lambda life: life.cluster.mend())
        return True

    def calm(self) -> None:
        self.cluster.mend()
        super().calm()

    def _wrong(self) -> list[str]:
        self.failures += (
            self.hosts_lost
        )  # peers of a silent host may be found to hang before it is found lost
        return [*self.late, *super()._wrong()]


def life_of(*acts: Callable[[Any], bool], disturbed: bool = False) -> Callable[[int], list[str]]:
    def play(seed: int) -> list[str]:
        life = SilentLife(seed, acts, disturbed=disturbed)
        wrong = life.play()
        return [*wrong, *life.diary] if wrong else []

    return play


@pytest.mark.parametrize(
    "act", [SilentLife.power_off, SilentLife.power_off_with_leader, SilentLife.break_link]
)
def test_one_loss_is_decided_in_time_and_a_broken_link_is_none(act: Callable[[Any], bool]) -> None:
    play_seeds(life_of(act), SEEDS)


def test_two_hosts_at_once() -> None:
    play_seeds(life_of(SilentLife.power_off_two), SEEDS)


def test_several_hosts_and_links() -> None:
    acts = (SilentLife.power_off, SilentLife.cut_off, SilentLife.break_link, SilentLife.power_off)
    play_seeds(life_of(*acts), SEEDS)


def test_among_all_else_that_befalls_a_job() -> None:
    acts = tuple(act for _, act in BEFALLS[:7])
    play_seeds(life_of(SilentLife.power_off, SilentLife.cut_off, *acts[:3], disturbed=True), SEEDS)
