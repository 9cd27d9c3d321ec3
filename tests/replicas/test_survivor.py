"""A process that lives on, played: its agent, its groups and its checkpoints are false, and chance breaks rounds.

What holds, whatever breaks when:
* nothing is written for the agent, and nothing waits in a collective, when the process says that it has left;
* each round that it was given it answers once: formed, left or lost;
* it goes on from the step that it loaded in the newest round, and in no other;
* an error of the script's own ends the script.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from agent.survival.client import AgentGoneError, HandedRound
from agent.survival.messages import Formed, Left, Lost
from crds.progress_record import ENV_ROUND
from dlr.replicas.survivor import RoundOverError, Survivor, TrainingStep, is_made_again

SEEDS = 300
PEER_DIED = "[…/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:53"


class Surroundings:
    """The line, the groups and the checkpoints of one process; chance breaks a round while they are used."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.round = 1
        self.over = 0
        self.waits_in_groups = self.writes = True
        self.said: list[Any] = []

    def break_round(self, likelihood: float = 0.2) -> None:
        if self.chance.random() < likelihood:
            self.over = self.round

    # The line.

    def enter(self, local_rank: int, round_: int) -> None:
        assert (local_rank, round_) == (3, self.round)

    def send(self, message: Any) -> None:
        if isinstance(message, Left | Lost):
            assert not self.waits_in_groups and not self.writes
            self.over = max(self.over, message.round)
        self.said.append(message)

    def next_round(self) -> HandedRound:
        assert self.over == self.round, "the last round is answered"
        self.round += 1
        return HandedRound(self.round, {ENV_ROUND: str(self.round)}, {})

    def is_over(self, round_: int) -> bool:
        return self.over >= round_

    def rest(self, seconds: float | None = None) -> None:
        """The line's and the checkpoint's."""
        if seconds is None:
            self.writes = False

    # The groups.

    def adopt(self) -> None: ...

    def break_off(self) -> None:
        self.waits_in_groups = False

    def form(self, round_: int, store: object, await_all: Callable[..., None]) -> None:
        assert round_ == self.round
        self.waits_in_groups = True
        if round_ == 1:
            return  # a process whose peers die before its first step is an ordinary one, and ends
        self.break_round()
        if self.over == round_:
            raise RoundOverError
        if self.chance.random() < 0.1:
            raise RuntimeError(PEER_DIED)

    # The checkpoints.

    def load_again(self) -> int | None:
        self.writes = True
        self.break_round()
        if self.over == self.round and self.chance.random() < 0.5:
            raise RuntimeError(PEER_DIED)
        return self.round * 100


def survivor_of(around: Any, **environ: str) -> Survivor:
    variables = {ENV_ROUND: "1", "LOCAL_RANK": "3", **environ}
    return Survivor(around, around, around, [], [], variables, connect=lambda _: around)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_each_round_is_answered_once_and_the_newest_is_what_training_goes_on_in() -> None:
    for seed in range(SEEDS):
        around = Surroundings(random.Random(seed))
        survivor, at = survivor_of(around), 0
        for _ in range(20):
            breaks = around.chance.random()
            try:
                with TrainingStep.of(at, survivor):
                    around.break_round()
                    if breaks < 0.3:
                        raise RuntimeError(PEER_DIED)
            except RuntimeError:
                pytest.fail(f"seed {seed}: the script has seen the death of a peer")
            loaded = survivor.take_loaded()
            if loaded is None:
                assert breaks >= 0.3 and not around.is_over(around.round)
                at += 1
                continue
            at = loaded
            assert around.said[-1] == Formed(around.round, at) and at == around.round * 100
        answered = [message.round for message in around.said if not isinstance(message, Formed)]
        assert answered == list(range(1, around.round)), f"seed {seed}"


def test_an_error_of_the_scripts_own_ends_it() -> None:
    around = Surroundings(random.Random(0))
    survivor = survivor_of(around)
    with pytest.raises(ValueError, match="mine"), TrainingStep.of(0, survivor):
        raise ValueError("mine")
    with pytest.raises(KeyboardInterrupt), TrainingStep.of(0, survivor):
        around.over = 1
        raise KeyboardInterrupt
    assert around.said == []


def test_what_an_agent_that_has_gone_leaves_ends_with_it() -> None:
    class Gone(Surroundings):
        def next_round(self) -> HandedRound:
            raise AgentGoneError("the agent has gone")

    with pytest.raises(AgentGoneError), TrainingStep.of(0, survivor_of(Gone(random.Random(0)))):
        raise RuntimeError(PEER_DIED)


@pytest.mark.parametrize(
    ("error", "is_over", "made_again"),
    [
        (None, False, False),
        (None, True, True),
        (RuntimeError(PEER_DIED), False, True),
        (RuntimeError("CUDA out of memory"), False, False),
        (RuntimeError("CUDA out of memory"), True, True),
        (ValueError(PEER_DIED), False, False),
        (SystemExit(0), True, False),
    ],
)
def test_what_is_made_again(error: BaseException | None, is_over: bool, made_again: bool) -> None:
    assert is_made_again(error, is_over=is_over) is made_again
