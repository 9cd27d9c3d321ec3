"""`dlr.Job`: a job in a cluster, with calls to wait for, read, change and delete it. All calls block."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from crds import names
from crds.grouping import group_count
from dlr.job import report
from dlr.job.deletion import wait_until_gone
from dlr.job.groups import refuse_group, training
from dlr.job.logs import choose_workers, followed, job_and_workers, present
from dlr.job.lookup import (
    NoSuchJob,
    get_group,
    get_job,
    groups_of,
    list_workers,
    set_replicas,
    set_suspended,
    workers_of,
)
from dlr.job.progress import progress_of, total_steps
from dlr.job.stacks import ask_all, merge, stack_lines, together, without_answer
from dlr.job.tones import tone_of
from dlr.kube.api import ELASTICJOBS, JSON, Api
from dlr.kube.errors import ApiError, Error
from dlr.kube.following import until_finished

STACKS_SECONDS = 15.0
DELETE_SECONDS = 120.0


@dataclass(frozen=True)
class JobStatus:
    """Status of a job at one time."""

    name: str
    namespace: str
    phase: str
    """Phase in the job's status; Unobserved before a controller has set one."""
    workers: int
    """Number of workers that train, or are ready to."""
    desired_workers: int
    round: int
    """Round of the world; 0 before the first, and for a job with replica groups."""
    step: int | None
    """Highest step that a worker has reported."""
    total_steps: int | None
    """Steps of the whole training, from the job's annotation."""
    restarts: dict[str, int]
    """Number of worlds that broke because training processes failed, by exit class."""
    why: str
    """Reason why the job does not train, or has failed; "" without one."""
    groups: int = 0
    """Number of replica groups that train together."""
    desired_groups: int = 0
    """Number of the job's replica groups; 0 for a job without any."""

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
        if self.desired_groups and not self.finished:
            parts.append(f"{self.groups}/{self.desired_groups} groups")
        if self.step is not None:
            parts.append(f"step {self.step}" + (f" of {self.total_steps}" if self.total_steps else ""))
        if self.restarts:
            classes = ", ".join(f"{name} {count}" for name, count in self.restarts.items())
            parts.append(f"failures: {classes}")
        return ", ".join(parts) + (f": {self.why}" if self.why else "")


def read_status(job: JSON, workers: Sequence[JSON]) -> JobStatus:
    status = job.get("status") or {}
    counts = (status.get("replicaStatuses") or {}).get(names.WORKER) or {}
    wanted = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas")
    progress = progress_of(job, workers)
    why = report.why_line(job)
    if report.phase(job) == "Failed":
        why = (status.get("lastFailure") or {}).get("message") or why
    return JobStatus(
        name=job["metadata"]["name"],
        namespace=job["metadata"]["namespace"],
        phase=report.phase(job),
        workers=int(counts.get("active") or 0),
        desired_workers=int(counts.get("desired") or wanted or 0),
        round=int((status.get("rendezvous") or {}).get("round") or 0),
        step=progress.step if progress else None,
        total_steps=total_steps(job),
        restarts={name: int(count) for name, count in (status.get("restarts") or {}).items() if count},
        why=why,
        groups=len(training(job)),
        desired_groups=group_count(job),
    )


class JobFailed(Error):
    """The job failed; the message says why.

    Attributes:
        status: last status of the job.
    """

    def __init__(self, status: JobStatus) -> None:
        super().__init__(f"The job {status.name!r} failed: {status.why or 'see its conditions'}")
        self.status = status


class Job:
    """One ElasticJob, from a `dlr.Client`.

    All methods raise `dlr.ApiError`, with one sentence, if the cluster cannot be reached or refuses, or if
    the job was deleted.
    """

    def __init__(self, api: Api, job: JSON) -> None:
        self._api = api.within(job["metadata"]["namespace"])
        self._uid = job["metadata"]["uid"]
        self.name: str = job["metadata"]["name"]
        self.namespace: str = job["metadata"]["namespace"]
        self._last = read_status(job, ())

    def status(self) -> JobStatus:
        """Read and return the job's present status."""
        job = self._fetch()
        self._last = read_status(job, workers_of(self._api, job))
        return self._last

    def wait(self, timeout_seconds: float | None = None) -> JobStatus:
        """Wait until the job has succeeded.

        Raises:
            JobFailed: the job has failed.
            TimeoutError: the job has not ended within `timeout_seconds`; it goes on.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def is_over(job: JSON) -> bool:
            return report.is_finished(job) or (deadline is not None and time.monotonic() > deadline)

        for _ in until_finished(self._fetch, is_over):
            pass
        status = self.status()
        if status.succeeded:
            return status
        if status.finished:
            raise JobFailed(status)
        raise TimeoutError(f"The job {self.name!r} has not ended within {timeout_seconds:g} s: {status}.")

    def result(self, timeout_seconds: float | None = None) -> Any:
        """Wait until the job has succeeded, and return the result of rank 0.

        The result is the return value of the function, or the value that the script has passed to
        `dlr.report_result`; None without either. At most 8,192 characters of JSON are kept. With replica
        groups it is the result of the first one that has succeeded.

        Raises:
            JobFailed: the job has failed.
            TimeoutError: the job has not ended within `timeout_seconds`; it goes on.
            ValueError: the result is no JSON, or too long; the message says which.
        """
        self.wait(timeout_seconds)
        job = self._fetch()
        # All groups train the same model, but some may have failed, or ended before the last step.
        ended = [each for each in groups_of(self._api, job) if report.phase(each) == "Succeeded"]
        source = ended[0] if ended else job
        return result_of(source, list_workers(self._api, source["metadata"]["name"]))

    def groups(self) -> list[Job]:
        """Return the job's replica groups in order, each a job of its own; empty for a job without any."""
        return [Job(self._api, each) for each in groups_of(self._api, self._fetch())]

    def group(self, index: int) -> Job:
        """Return one replica group.

        Raises:
            ValueError: the job has no such group.
        """
        return Job(self._api, get_group(self._api, self._fetch(), index))

    def logs(
        self, rank: int | None = None, *, follow: bool = False, tail_lines: int | None = None
    ) -> Iterator[str]:
        """Yield the lines that the workers print; with several workers, each line names its worker.

        Args:
            rank: node rank of a single worker; default: all workers. Replica groups have ranks of their own:
                `job.group(0).logs(rank)`.
            follow: whether to wait for the workers, and to follow until the job ends, from Pod to Pod.
            tail_lines: number of last lines of each Pod; default: all.

        Raises:
            ValueError: the job has no such rank, or more workers than can be shown at once.
        """
        job, found = job_and_workers(self._api, self._fetch, await_them=follow)
        workers = choose_workers(job, found, rank)
        if follow:
            return followed(self._api.connection, job, workers, tail_lines)
        return present(self._api, job, workers, tail_lines)

    def stacks(self, timeout_seconds: float = STACKS_SECONDS) -> str:
        """Return the present stacks of all training processes: equal stacks once, rare ones first.

        Stacks of replica groups come group by group, below the name of the group's job.

        Raises:
            TimeoutError: no agent has answered.
        """
        job = self._fetch()
        asked = [each["metadata"]["name"] for each in groups_of(self._api, job)] or [self.name]
        found = dict(zip(asked, ask_all(self._api, asked, timeout_seconds), strict=True))
        if not any(answers.stacks for answers in found.values()):
            raise TimeoutError(without_answer(self.name, together(found.values()), timeout_seconds))
        lines = []
        for name, answers in found.items():
            lines += [f"{name}:"] if len(found) > 1 and answers.stacks else []
            lines += stack_lines(merge(answers.stacks), answers.where)
        return "\n".join(lines)

    def scale(self, workers: int) -> None:
        """Change the number of workers."""
        refuse_group(self._fetch(), "scale")
        set_replicas(self._api, self.name, workers)

    def suspend(self) -> None:
        """Stop the training after time to save; the job's state stays. A suspended job stays so."""
        self._fetch()
        set_suspended(self._api, self.name, True)

    def resume(self) -> None:
        """Let a suspended job train again; does nothing for other jobs."""
        self._fetch()
        set_suspended(self._api, self.name, False)

    def delete(self, *, wait: bool = True, timeout_seconds: float = DELETE_SECONDS) -> None:
        """Delete the job with everything that belongs to it, and wait until its Pods are gone.

        Raises:
            TimeoutError: some Pods are left after `timeout_seconds`; the message says why.
        """
        job = self._fetch()
        refuse_group(job, "delete")
        self._api.delete(ELASTICJOBS, self.name)
        if wait:
            wait_until_gone(self._api, job, time.monotonic() + timeout_seconds)

    def _fetch(self) -> JSON:
        """Read the job.

        Raises:
            NoSuchJob: it was deleted.
        """
        job = get_job(self._api, self.name)
        if job["metadata"]["uid"] != self._uid:
            raise NoSuchJob(f"The job {self.name!r} was deleted, and another has its name now.")
        return job

    def __repr__(self) -> str:
        return f"<dlr.Job {self.namespace}/{self.name}: {self._last}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook, with the present state, or the last one during an outage."""
        with suppress(ApiError):
            self.status()
        mark = f"<span style='color:{tone_of(self._last.phase).fill}'>●</span>"
        return f"{mark} <b>{html.escape(f'{self.namespace}/{self.name}')}</b>: {html.escape(str(self._last))}"


def result_of(job: JSON, workers: Sequence[JSON]) -> Any:
    """Return the result of rank 0 of the last world; None without one.

    Raises:
        ValueError: the result could not be kept.
    """
    rank_of = report.ranks(job)
    for worker in workers:
        if worker["spec"]["type"] == names.WORKER and rank_of.get(worker["spec"]["index"]) == 0:
            text = ((worker.get("status") or {}).get("agent") or {}).get("result")
            kept = json.loads(text) if text else {}
            if "error" in kept:
                raise ValueError(
                    f"The result of {job['metadata']['name']!r} could not be kept: {kept['error']}."
                )
            return kept.get("value")
    return None
