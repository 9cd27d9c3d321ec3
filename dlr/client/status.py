"""How a job is, as `dlr.Job.status()` says it: the cluster's objects, read into one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crds import names
from dlr.job import report

JSON = dict[str, Any]


@dataclass(frozen=True)
class JobStatus:
    """A job at one moment."""

    name: str
    namespace: str
    phase: str
    """The phase in the job's status; Unobserved before a controller has seen the job."""
    workers: int
    """That train, or are ready to."""
    desired_workers: int
    round: int
    """The world's round; 0 before the first."""
    step: int | None
    """The furthest that a worker has told."""
    total_steps: int | None
    """Steps that the job will have done in all, if its author has set them."""
    restarts: dict[str, int]
    """Worlds that broke because training processes failed, by class."""
    why: str
    """Why it does not train, or has failed; "" where there is nothing to say."""

    @property
    def finished(self) -> bool:
        return self.phase in report.FINISHED

    @property
    def succeeded(self) -> bool:
        return self.phase == "Succeeded"

    def __str__(self) -> str:
        parts = [self.phase]
        if not self.finished:
            parts.append(f"{self.workers}/{self.desired_workers} workers")
        if self.step is not None:
            parts.append(f"step {self.step}" + (f" of {self.total_steps}" if self.total_steps else ""))
        if self.restarts:
            classes = ", ".join(f"{name} {count}" for name, count in self.restarts.items())
            parts.append(f"failures: {classes}")
        return ", ".join(parts) + (f": {self.why}" if self.why else "")


def read_status(job: JSON, workers: Sequence[JSON]) -> JobStatus:
    status = job.get("status") or {}
    counts = (status.get("replicaStatuses") or {}).get(names.WORKER) or {}
    total = (job["metadata"].get("annotations") or {}).get(names.ANNOTATION_TOTAL_STEPS, "")
    why = report.why_line(job)
    if report.phase(job) == "Failed":
        why = (status.get("lastFailure") or {}).get("message") or why
    return JobStatus(
        name=job["metadata"]["name"],
        namespace=job["metadata"]["namespace"],
        phase=report.phase(job),
        workers=int(counts.get("active") or 0),
        desired_workers=int(
            counts.get("desired") or job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas") or 0
        ),
        round=int((status.get("rendezvous") or {}).get("round") or 0),
        step=max(steps_of(workers), default=None),
        total_steps=int(total) if total.isdigit() else None,
        restarts={name: int(count) for name, count in (status.get("restarts") or {}).items() if count},
        why=why,
    )


def steps_of(workers: Sequence[JSON]) -> list[int]:
    progress = [((each.get("status") or {}).get("agent") or {}).get("progress") or {} for each in workers]
    return [int(told["step"]) for told in progress if told.get("step") is not None]
