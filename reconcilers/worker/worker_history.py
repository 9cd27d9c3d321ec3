"""The lives of a worker's slot, one for each of its Pods, for the job's timeline. Pure."""

from __future__ import annotations

from datetime import datetime

from controller.wording import first_line, shortened
from crds.elasticworker import (
    MAX_LIFE_REASON,
    MAX_LIVES,
    ElasticWorker,
    ElasticWorkerStatus,
    ExitClass,
    Life,
    WorkerExit,
    WorkerPhase,
)

RELEASED = "Released"
"""The Pod was taken away because the job was suspended, or has ended."""


def with_lives(worker: ElasticWorker, status: ElasticWorkerStatus, now: datetime) -> ElasticWorkerStatus:
    """The new status with its history brought up to date, from the one that is stored."""
    lives = list(worker.status.history)
    last = lives[-1] if lives else None
    if last is None or last.incarnation != status.observed_incarnation:
        if last is not None and last.ended_at is None:  # its Pod lived when it was replaced
            lives[-1] = _ended(last, status.last_exit, now)
        lives.append(Life(incarnation=worker.spec.incarnation, created_at=_asked_for(worker, now)))
    elif last.ended_at is not None:
        if not _lives(status):
            return status.model_copy(update={"history": lives})
        lives.append(Life(incarnation=worker.spec.incarnation, created_at=now))  # after a suspension
    lives[-1] = _as_observed(lives[-1], worker, status, now)
    return status.model_copy(update={"history": lives[-MAX_LIVES:]})


def _asked_for(worker: ElasticWorker, now: datetime) -> datetime:
    created = worker.metadata.creation_timestamp
    return created if created is not None and worker.spec.incarnation == 1 else now


def _lives(status: ElasticWorkerStatus) -> bool:
    return status.pod_uid is not None and status.phase in (WorkerPhase.PENDING, WorkerPhase.RUNNING)


def _as_observed(life: Life, worker: ElasticWorker, status: ElasticWorkerStatus, now: datetime) -> Life:
    known = {"node_name": status.node_name or life.node_name}
    if status.phase is WorkerPhase.RUNNING and life.running_at is None:
        return life.model_copy(update=known | {"running_at": now})
    life = life.model_copy(update=known)
    same_life = worker.status.observed_incarnation == status.observed_incarnation
    if same_life and worker.status.pod_uid is not None and status.pod_uid is None:
        return life.model_copy(update={"ended_at": now, "reason": RELEASED})
    if status.phase is WorkerPhase.SUCCEEDED:
        return life.model_copy(update={"ended_at": now, "exit_class": ExitClass.SUCCEEDED})
    if status.phase is not WorkerPhase.FAILED:
        return life
    if status.last_exit is None or status.last_exit.incarnation != life.incarnation:
        return life.model_copy(update={"ended_at": now, "reason": RELEASED})  # its end counts no more
    return _ended(life, status.last_exit, now)


def _ended(life: Life, end: WorkerExit | None, now: datetime) -> Life:
    if end is None or end.incarnation != life.incarnation:
        return life.model_copy(update={"ended_at": now})
    said = first_line(end.message)
    reason = shortened(f"{end.reason}: {said}" if said else end.reason, MAX_LIFE_REASON)
    return life.model_copy(update={"ended_at": end.time, "exit_class": end.exit_class, "reason": reason})
