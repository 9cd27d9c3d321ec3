"""Objects that this version of dlr cannot read: of a later version, or written by somebody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from controller.wording import shortened
from crds.release import VERSION
from dlr.job.lookup import get_job, workers_of
from dlr.job.wording import plain
from dlr.kube.api import JSON, Api
from dlr.kube.errors import ApiError, UsageError

Shown = TypeVar("Shown")

UNREADABLE = "Unreadable"
"""The phase that is shown of a job that cannot be read."""
MOST_CHARACTERS = 300
DEFECTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised at an object that is not as it should be."""


class UnreadableJob(ApiError):
    """A job, or one of its workers, that this version cannot read."""


def fault_of(job: JSON, workers: Sequence[JSON] = ()) -> str:
    """Return the first field of these objects that cannot be read, with the reason; "" without one."""
    from pydantic import ValidationError  # takes as long to import as `dlr job list` needs for all the rest

    from crds.elasticjob import ElasticJob
    from crds.elasticworker import ElasticWorker
    from crds.model import first_fault

    try:
        ElasticJob.model_validate(job)
    except ValidationError as error:
        return shortened(plain(first_fault(error)), MOST_CHARACTERS)
    for worker in workers:
        try:
            fault = ElasticWorker.model_validate(worker).status.report_fault
        except ValidationError as error:
            fault = first_fault(error)
        if fault:
            return shortened(plain(f"ElasticWorker {worker['metadata']['name']}, {fault}"), MOST_CHARACTERS)
    return ""


def of_all(jobs: Sequence[JSON], show: Callable[[Sequence[JSON]], Shown]) -> Shown:
    """Return what `show` makes of all jobs. In place of one that it fails at stands one that says why."""
    try:
        return show(jobs)
    except DEFECTS:
        return show([_shown_or_why(job, show) for job in jobs])


def _shown_or_why(job: JSON, show: Callable[[Sequence[JSON]], object]) -> JSON:
    try:
        show([job])
    except DEFECTS as error:
        fault = fault_of(job)
        defect = f"{type(error).__name__}: {error}"
        why = f"dlr {VERSION} cannot read {fault}" if fault else f"please report {defect}"
        spec = job["spec"] if fault.startswith("status") else {"replicaSpecs": {}}
        status = {"phase": UNREADABLE, "message": shortened(why, MOST_CHARACTERS)}
        return {"metadata": job["metadata"], "spec": spec, "status": status}
    return job


@contextmanager
def naming_what_cannot_be_read(api: Api, name: str) -> Iterator[None]:
    """Raise Unreadable for a defect in the block, if the job or a worker of it cannot be read.

    They are read again for it: how far the block came is not known.
    """
    try:
        yield
    except UsageError:
        raise
    except DEFECTS as error:
        job = get_job(api, name)
        if not (fault := fault_of(job, workers_of(api, job))):
            raise
        raise UnreadableJob(
            f"dlr {VERSION} cannot read ElasticJob {name!r}: {fault}. A later version may have written it; "
            f"`kubectl get ej,ew -n {api.namespace} -o yaml` shows all of it."
        ) from error
