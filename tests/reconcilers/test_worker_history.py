from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crds.elasticworker import (
    MAX_LIFE_REASON,
    MAX_LIVES,
    ElasticWorker,
    ElasticWorkerStatus,
    ExitClass,
    SlotLife,
    WorkerPhase,
)
from reconcilers.observed.worker_state import ENDED
from reconcilers.worker.ends import RELEASED
from reconcilers.worker.worker_status import observe
from tests.reconcilers.build import NOW, later, pod, report, terminated, worker
from tests.reconcilers.observing import observation


class Slot:
    """One ElasticWorker, as its two writers see it."""

    def __init__(self) -> None:
        self.worker: ElasticWorker = worker(phase=None)
        created = self.worker.metadata.model_copy(update={"creation_timestamp": NOW})
        self.worker = self.worker.model_copy(update={"metadata": created})

    def seen(self, at: float, **seen: Any) -> None:
        status = observe(self.worker, observation(**seen), later(at))
        stored = ElasticWorkerStatus.model_validate(status.to_wire())
        self.worker = self.worker.model_copy(update={"status": stored})

    def pod(self, at: float, phase: str = "Running", **more: Any) -> None:
        released = more.pop("released", False)
        self.seen(at, pod=pod(0, phase, self.worker.spec.incarnation, **more), released=released)

    def relaunch(self, **spec: Any) -> None:
        update = {"incarnation": self.worker.spec.incarnation + 1} | spec
        self.worker = self.worker.model_copy(update={"spec": self.worker.spec.model_copy(update=update)})

    @property
    def lives(self) -> list[SlotLife]:
        return self.worker.status.history


def test_a_life_from_its_asking_to_its_end() -> None:
    slot = Slot()
    slot.seen(1, pod=None)
    slot.pod(2, "Pending")
    slot.pod(5)
    slot.pod(50, "Failed", containerStatuses=[terminated(1)])
    slot.pod(90, "Failed", containerStatuses=[terminated(1)])
    assert slot.lives == [
        SlotLife(
            incarnation=1,
            node_name="node-0",
            created_at=NOW,
            running_at=later(5),
            ended_at=later(50),
            exit_class=ExitClass.USER_ERROR,
            reason="Error: exit code 1",
        )
    ]


def test_a_life_that_was_replaced_ends_when_the_next_begins() -> None:
    slot = Slot()
    slot.pod(1)
    slot.relaunch()
    slot.seen(20, pod=None)
    assert (slot.lives[0].ended_at, slot.lives[0].exit_class) == (later(20), None)
    slot.pod(22)
    slot.relaunch(faulty_nodes=["node-0"])
    slot.seen(30, pod=None)
    assert (slot.lives[1].ended_at, slot.lives[1].exit_class) == (later(30), ExitClass.CHECK_FAILED)


def test_suspension_ends_a_life_and_the_same_incarnation_has_another_after_it() -> None:
    slot = Slot()
    slot.pod(1)
    slot.pod(10, released=True)
    slot.seen(12, pod=None, released=True)
    slot.seen(20, pod=None, released=True)
    assert (slot.lives[-1].ended_at, slot.lives[-1].reason) == (later(12), RELEASED)
    slot.seen(30, pod=None)
    assert len(slot.lives) == 1, "no new Pod yet"
    slot.pod(31, "Pending")
    slot.pod(35)
    assert [(life.incarnation, life.created_at, life.running_at, life.ended_at) for life in slot.lives] == [
        (1, NOW, later(1), later(12)),
        (1, later(31), later(35), None),
    ]


def test_the_reason_is_one_line_that_fits_its_field() -> None:
    slot = Slot()
    slot.pod(1)
    failure = {"sequence": 1, "round": 1, "exitCode": 1, "message": "ValueError: " + "x" * 9_000, "time": NOW}
    said = report(0, observed_round=1, failure={**failure, "message": failure["message"][:2_000]})
    status = slot.worker.status.model_copy(update={"agent": said})
    slot.worker = slot.worker.model_copy(update={"status": status})
    slot.pod(50, "Failed", containerStatuses=[terminated(1)])
    assert (
        slot.lives[-1].reason.startswith("Error: ValueError: xxx")
        and len(slot.lives[-1].reason) == MAX_LIFE_REASON
    )


@given(
    st.lists(st.sampled_from(["pending", "running", "failed", "gone", "released", "relaunch"]), max_size=90)
)
def test_lives_follow_each_other_and_only_the_last_may_go_on(script: list[str]) -> None:
    slot = Slot()
    for at, what in enumerate(script):
        match what:
            case "pending":
                slot.pod(at, "Pending")
            case "running":
                slot.pod(at)
            case "failed":
                slot.pod(at, "Failed", containerStatuses=[terminated(1)])
            case "gone" | "released":
                slot.seen(at, pod=None, released=what == "released")
            case "relaunch":
                slot.relaunch()
        status, before = slot.worker.status, slot.lives
        if status.phase in ENDED and status.observed_incarnation == slot.worker.spec.incarnation:
            slot.pod(at)
            assert slot.lives == before, "an end is final"
        assert len(slot.lives) <= MAX_LIVES
        assert all(life.ended_at is not None for life in slot.lives[:-1])
        times = [t for life in slot.lives for t in (life.created_at, life.running_at, life.ended_at) if t]
        assert times == sorted(times)
        if slot.worker.status.phase is WorkerPhase.RUNNING:
            assert slot.lives[-1].running_at is not None and slot.lives[-1].ended_at is None
