"""The controller's wall clock is set back, or the next leader's is behind: what it wrote before is in the future."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from crds.elasticworker import ExitClass, WorkerPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.hangs import ANSWER_SECONDS
from reconcilers.job.workers import plan_relaunches
from reconcilers.nodecheck.suspicion import suspected_by_failures
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.build import NOW, later, worker
from tests.reconcilers.failure_life import Life
from tests.reconcilers.life import JOB, Run, beginning, submit

HOUR_SECONDS = 3_600


def ended(seconds: float, **more: Any) -> dict[str, Any]:
    end = {"incarnation": 1, "exitClass": "HardwareError", "nodeName": "node-0", "time": later(seconds)}
    return {"lastExit": end | more}


@pytest.mark.parametrize("quick_exits", [0, 1, 5])
def test_an_end_in_the_future_delays_no_relaunch(quick_exits: int) -> None:
    lost = worker(0, WorkerPhase.FAILED, quickExits=quick_exits, **ended(HOUR_SECONDS))
    assert plan_relaunches([lost], Rendezvous(), NOW).relaunches


def test_a_hang_is_judged() -> None:
    life = Life.of(3)
    life.train()
    life.fail(0, cause="Hang", exit_code=None, message="no step for 600 s: rank 0 is in all_reduce")
    assert life.world.hang_since is not None
    life.look(-HOUR_SECONDS)
    assert life.world.hang_since == life.now
    life.look(ANSWER_SECONDS + 0.1)
    assert life.world.hang_since is None and life.job.status.restarts == {"Hang": 1}


def test_a_suspicion_is_taken_back_to_the_present_once() -> None:
    """Or the check that follows would end before the suspicion, and so would every other."""
    lost = worker(0, WorkerPhase.FAILED, **ended(HOUR_SECONDS, suspectsHardware=True))
    assert lost.status.last_exit is not None
    assert lost.status.last_exit.exit_class is ExitClass.HARDWARE_ERROR
    known = suspected_by_failures(later(HOUR_SECONDS), [lost], Rendezvous(), NOW)
    assert known == NOW
    assert suspected_by_failures(known, [lost], Rendezvous(), later(60)) == NOW
    assert suspected_by_failures(None, [lost], Rendezvous(), NOW + timedelta(seconds=1)) == later(1)


@pytest.mark.parametrize("policy", [{}, {"replicaGroups": {"workers": 1}}], ids=["alone", "in groups"])
async def test_an_end_in_the_future_keeps_no_job_beyond_its_time(policy: dict[str, Any]) -> None:
    api = beginning()
    submit(api, elasticPolicy=policy, runPolicy={"ttlSecondsAfterFinished": 5}, suspend=True)
    await Run(api).settle()
    ended = {"phase": "Failed", "completionTime": later(HOUR_SECONDS).isoformat()}
    api.patch(ELASTICJOBS, JOB, {"status": ended}, "status")
    await Run(api).settle()
    assert api.find(ELASTICJOBS, JOB) is None
