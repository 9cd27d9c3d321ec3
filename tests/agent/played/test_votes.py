"""Whole rounds of agents that leave by vote, played.

Whatever is delayed, breaks, dies, fails, ends or stands still:

* steps: no two processes leave by vote after different steps of one round;
* beyond: nobody begins a step beyond the agreed one whose agent has heard of it in time;
* calm: where nothing goes wrong, a vote that is asked for ends with all having left after the agreed step;
* held: no process is held for longer than HOLD_SECONDS + SLACK_SECONDS;
* brief: where nobody stands still, none is held for longer than messages take, and than the chair waits for the silent;
* counted: a vote is decided by the answers of all agents, whose processes all take part;
* lost: all hear of an agent that ends before its processes have left, and do not wait for its part for long;
* grace, outcome: each agent's leave comes to an outcome within its grace;
* left: an agent says that its processes have left only when they have;
* tier: the agreed tier is the safest that was asked for, or that all can keep.
"""

from __future__ import annotations

from collections import Counter

import pytest

from agent.supervision.leaving import VoteOutcome
from tests.agent.played.rounds import Round, draw_setting
from tests.played.schedule import BY_HAND, Schedule, play_seeds

SCHEDULES = 1_500

pytestmark = pytest.mark.played


def play(seed: int) -> Round:
    schedule = Schedule(seed)
    round_ = Round(schedule, draw_setting(schedule.random))
    schedule.run()
    return round_


def test_all_leave_after_the_same_step_or_nobody_does() -> None:
    outcomes: Counter[VoteOutcome | None] = Counter()

    def found(seed: int) -> list[str]:
        round_ = play(seed)
        outcomes.update(agent.outcome for agent in round_.agents)
        return round_.violations()

    play_seeds(found, SCHEDULES)
    print(dict(outcomes))
    if not BY_HAND:
        assert outcomes.keys() >= {*VoteOutcome} - {VoteOutcome.ENDED}, (
            "schedules that reach nothing show nothing"
        )
