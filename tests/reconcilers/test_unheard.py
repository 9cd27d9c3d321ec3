"""The warning AgentsUnheard: a Pod runs, and nobody speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from controller.reconciler import Request
from crds.agent_report import AgentState
from crds.cluster_status import ClusterStatus
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from reconcilers.conditions.reported import AGENTS_UNHEARD, UNHEARD_SECONDS, seconds_to_hear
from reconcilers.job.plan import plan_job
from reconcilers.observed.worker_state import runs_unheard
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.world.participants import Ages
from tests.reconcilers.api import NAMESPACE
from tests.reconcilers.build import NOW, job, report, worker
from tests.reconcilers.judging import judge, seen_of, with_status
from tests.reconcilers.test_minimum import with_container
from tests.reconcilers.worker_stage import JOB, WORKER, Api, Controller


def running(index: int, since: datetime = NOW, **status: Any) -> ElasticWorker:
    """A worker whose Pod runs."""
    life = {"incarnation": 1, "createdAt": since, "runningAt": since}
    return worker(index, WorkerPhase.RUNNING, history=[life], **status)


def told(of: ElasticJob, workers: Sequence[ElasticWorker], seconds: float) -> list[str]:
    """The warnings when they have run unheard for so long."""
    unheard = {each.metadata.uid: seconds for each in workers if runs_unheard(each)}
    after, _ = judge(of, AGENTS_UNHEARD, workers=workers, ages=Ages(unheard=unheard))
    return [each.message for each in after.status.warnings]


def test_a_pod_that_has_run_for_long_without_a_word_is_named_with_what_may_be_wrong() -> None:
    heard = running(0, agent=report(0, AgentState.READY).to_wire())
    (message,) = told(job(replicas=2), [heard, running(1)], UNHEARD_SECONDS)
    assert message.startswith("1 Pod has run since ") and "(digits-worker-1)" in message
    assert "KUBERNETES_SERVICE_HOST" in message


def test_a_look_is_due_when_the_time_is_over_and_not_again() -> None:
    assert told(job(replicas=1), [running(0)], UNHEARD_SECONDS - 5) == []
    assert seconds_to_hear({"young": UNHEARD_SECONDS - 5, "old": UNHEARD_SECONDS}) == 5
    assert seconds_to_hear({"old": UNHEARD_SECONDS}) is None
    young = seen_of(job(replicas=1), [running(0)], ages=Ages(unheard={"uid-0": UNHEARD_SECONDS - 5}))
    look_again = plan_job(young, NOW).look_again_seconds
    assert look_again is not None and look_again <= 5


def test_an_agent_whose_report_cannot_be_read_has_been_heard() -> None:
    wire = running(0, agent=report(0, AgentState.READY).to_wire()).to_wire()
    wire["status"]["agent"]["since"] = "2026-01-01T00:00:00+99:99"
    spoiled = ElasticWorker.model_validate(wire)
    assert spoiled.status.report_fault and not runs_unheard(spoiled) and runs_unheard(running(0))


class Looks(Controller):
    """A controller and a job whose worker runs unheard."""

    def __init__(self, since: datetime = NOW) -> None:
        api = Api()
        api.apply_job()
        api.patch(ELASTICWORKERS, WORKER, {"status": running(0, since).to_wire()["status"]})
        super().__init__(api)

    async def warned(self, seconds: float) -> bool:
        """Whether the job has the warning after a look, so much later."""
        self.api.seconds += seconds
        self.deliver()
        await self.reconcile("elasticjob", Request(NAMESPACE, JOB))
        warnings = self.api.get(ELASTICJOBS, JOB)["status"].get("warnings", ())
        return AGENTS_UNHEARD in [each["type"] for each in warnings]


async def test_no_agent_counts_as_unheard_for_longer_than_the_controllers_own_contact() -> None:
    looks = Looks()
    assert not await looks.warned(0)
    assert not await looks.warned(UNHEARD_SECONDS - 1)
    looks.contact_broke()
    assert not await looks.warned(UNHEARD_SECONDS - 1)
    assert await looks.warned(1)
    looks.contact_broke()
    assert await looks.warned(1), "another outage says nothing new"


async def test_the_clock_of_an_earlier_controller_that_was_ahead_puts_no_warning_off() -> None:
    looks = Looks(NOW + timedelta(hours=5))
    assert not await looks.warned(0)
    assert await looks.warned(UNHEARD_SECONDS)


def test_a_role_may_run_without_an_agent() -> None:
    of = with_status(job(replicas=1), cluster=ClusterStatus(version=1, tasks={}, incarnations=[]))
    assert told(of, [running(0)], UNHEARD_SECONDS) == []


def test_a_pod_that_does_not_run_is_not_waited_for() -> None:
    assert not runs_unheard(worker(0, WorkerPhase.PENDING))


def told_of_command(container: dict[str, Any], **spec: Any) -> str:
    """The warning of a job with this container, none of whose agents has reported."""
    template = {"spec": {"containers": [{"name": "main", "image": "any", **container}]}}
    of = job(replicas=1, template=template, **spec)
    (message,) = told(of, [running(0)], UNHEARD_SECONDS)
    return message


@pytest.mark.parametrize(
    ("container", "setting"),
    [
        ({"command": ["torchrun", "--rdzv-backend=c10d", "train.py"]}, "--rdzv-backend=c10d"),
        ({"command": ["torchrun", "--rdzv_backend", "etcd", "train.py"]}, "--rdzv_backend etcd"),
        ({"command": ["bash", "-c", "cd /src && torchrun --standalone train.py"]}, "--standalone"),
        (
            {"command": ["torchrun", "x.py"], "env": [{"name": "PET_RDZV_BACKEND", "value": "c10d"}]},
            "PET_RDZV_BACKEND",
        ),
    ],
)
def test_what_leaves_dlr_out_is_named(container: dict[str, Any], setting: str) -> None:
    message = told_of_command(container)
    assert f"may leave dlr out by {setting}: remove that" in message


@pytest.mark.parametrize("command", [["torchrun", "--rdzv-backend=dlr", "train.py"], ["bash", "train.sh"]])
def test_a_command_that_hides_its_launcher_gets_all_reasons(command: list[str]) -> None:
    assert "starts no torchrun, dlr run or dlr exec, or a torchrun with another" in told_of_command(
        {"command": command}
    )


ALONE = "all workers finished, each by itself: no agent of dlr reported, so there was no world and no step; "


def test_a_job_that_trained_without_any_agent_ends_with_that_and_with_the_reason() -> None:
    def message(*command: str, **status: Any) -> str:
        of = with_container(2, {"command": list(command)})
        done = [worker(index, WorkerPhase.SUCCEEDED, **status) for index in (0, 1)]
        (event,) = (e for e in plan_job(seen_of(of, done), NOW).events if e.reason == "TrainingSucceeded")
        return event.message

    elsewhere = message("torchrun", "--standalone", "train.py")
    assert elsewhere == f"{ALONE}the command's torchrun may leave dlr out by --standalone: remove that"
    unclear = message("sh", "train.sh")
    assert unclear.startswith(f"{ALONE}the command starts no torchrun, dlr run or dlr exec")
    assert len(unclear) < 512
    reported = report(0, AgentState.SUCCEEDED, 0).to_wire()
    assert message("sh", "train.sh", agent=reported) == "all workers finished"
