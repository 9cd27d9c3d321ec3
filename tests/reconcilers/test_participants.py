from __future__ import annotations

from dataclasses import replace

from crds.agent_report import PROTOCOL
from crds.elasticworker import WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.world.participants import Ages, bounds_of, participants_of, seconds_behind_checkpoint
from tests.reconcilers.build import NOW, decide, job, participant, report, worker


def test_the_grace_is_the_one_of_the_workers_pods() -> None:
    template = {
        "spec": {"containers": [{"name": "main", "image": "x"}], "terminationGracePeriodSeconds": 300}
    }
    assert bounds_of(job()).grace_seconds == 30.0
    assert bounds_of(job(template=template)).grace_seconds == 300.0


def test_the_worlds_reason_fits_its_field_however_many_are_lost_and_however_much_they_say() -> None:
    lost = [worker(i, WorkerPhase.FAILED, message="x" * 8_000 + "\nmore") for i in range(50)]
    everyone = job(replicas=50)
    world = Rendezvous(round=1, phase=RendezvousPhase.FORMED, members=list(range(50)), incarnations=[1] * 50)
    reason = decide(
        world, participants_of(everyone, lost, Ages()), bounds_of(everyone), NOW
    ).rendezvous.reason
    assert len(reason) <= 1_024 and "and 47 more" in reason and "\n" not in reason


def test_a_checkpoint_that_is_reported_late_is_as_old_as_its_step() -> None:
    def behind(**progress: object) -> float:
        told = {"step": 20, "time": NOW, **progress}
        return seconds_behind_checkpoint(report(progress=told))

    assert behind(checkpoint_step=12, seconds_per_step=0.5) == 4.0
    assert behind(checkpoint_step=1, seconds_per_step=5.0) == 10.0, "such as an epoch's number"
    assert behind(checkpoint_step=20, seconds_per_step=0.5) == 0.0
    assert behind(checkpoint_step=21, seconds_per_step=0.5) == 0.0, "it is saved before its step is told"
    assert behind(checkpoint_step=12) == 0.0 and behind() == 0.0
    assert seconds_behind_checkpoint(None) == 0.0


def test_an_agent_that_reads_another_form_of_a_world_joins_none() -> None:
    assert participant(0).joinable
    assert not participant(0, report=replace(report(0), protocol=PROTOCOL - 1)).joinable
