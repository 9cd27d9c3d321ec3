"""Objects that this version of dlr cannot read, from a later version or another program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from controller.wording import shortened
from crds.release import VERSION
from dlr.job.wording import plain
from dlr.kube.api import JSON
from dlr.kube.errors import ApiError, UsageError

Shown = TypeVar("Shown")

UNREADABLE = "Unreadable"
"""Phase to show for a job that cannot be read."""
MOST_CHARACTERS = 300
DEFECTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that a malformed object causes."""


class UnreadableJob(ApiError):
    """This version cannot read a job, or one of its workers."""


def _why(error: Exception) -> str:
    defect = shortened(plain(f"{type(error).__name__}: {error}"), MOST_CHARACTERS)
    return (
        f"dlr {VERSION} cannot read it ({defect}); a later version may have written it, else please report it"
    )


def of_all(jobs: Sequence[JSON], show: Callable[[Sequence[JSON]], Shown]) -> Shown:
    """Return `show` of all jobs, with a substitute for each job on which it fails."""
    try:
        return show(jobs)
    except DEFECTS:
        return show([_shown_or_why(job, show) for job in jobs])


def _shown_or_why(job: JSON, show: Callable[[Sequence[JSON]], object]) -> JSON:
    try:
        show([job])
    except DEFECTS as error:
        status = {"phase": UNREADABLE, "message": _why(error)}
        return {"metadata": job["metadata"], "spec": {"replicaSpecs": {}}, "status": status}
    return job


@contextmanager
def naming_what_cannot_be_read(name: str) -> Iterator[None]:
    """Raise UnreadableJob for a defect in the block, which reads the job of that name."""
    try:
        yield
    except UsageError:
        raise
    except DEFECTS as error:
        raise UnreadableJob(f"ElasticJob {name!r}: {_why(error)}.") from error
