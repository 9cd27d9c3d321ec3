"""`dlr.Job`: a job in a cluster, to wait for, look at, change and delete. All calls block."""

from __future__ import annotations

import html
import json
import queue
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dlr.client.status import JobStatus, read_status
from dlr.job import report
from dlr.job.deletion import wait_until_gone
from dlr.job.log_stream import (
    Following,
    choose_workers,
    job_and_workers,
    log_lines,
    send_log,
)
from dlr.job.lookup import NoSuchJob, get_job, list_workers
from dlr.job.merged_stacks import merge, stack_lines
from dlr.job.pod_log import Wanted
from dlr.job.scaling import set_replicas
from dlr.job.stacks import ask, without_answer
from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.errors import CommandError
from dlr.kube.following import until_finished

JSON = dict[str, Any]

STACKS_SECONDS = 15.0
DELETE_SECONDS = 120.0
PHASE_COLOURS = {"Succeeded": "#2e7d32", "Running": "#2e7d32", "Failed": "#c62828"}
OTHER_COLOUR = "#b26a00"


class JobFailedError(CommandError):
    """The job has ended, and not well; the message says why."""


class JobTimeoutError(CommandError, TimeoutError):
    """The job has not ended in time; it goes on."""


class Job:
    """One ElasticJob. `dlr.Client` makes them.

    All methods raise `dlr.client.ClientError`, with one sentence, where the cluster cannot be reached or
    refuses, and where the job was deleted.
    """

    def __init__(self, api: Api, job: JSON) -> None:
        self._api = api.within(job["metadata"]["namespace"])
        self._uid = job["metadata"]["uid"]
        self.name: str = job["metadata"]["name"]
        self.namespace: str = job["metadata"]["namespace"]
        self._last = read_status(job, ())

    def status(self) -> JobStatus:
        """How it is now."""
        job = self._fetch()
        self._last = read_status(job, list_workers(self._api, self.name))
        return self._last

    def wait(self, timeout_seconds: float | None = None) -> JobStatus:
        """Wait until it has succeeded.

        Raises:
            JobFailedError: it has failed.
            JobTimeoutError: it still goes on after so long.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def is_over(job: JSON) -> bool:
            return report.is_finished(job) or (deadline is not None and time.monotonic() > deadline)

        *_, job = until_finished(self._fetch, is_over)
        status = self.status()
        if status.succeeded:
            return status
        if report.is_finished(job):
            raise JobFailedError(f"The job {self.name!r} failed: {status.why or 'see its conditions'}")
        raise JobTimeoutError(f"The job {self.name!r} has not ended within {timeout_seconds:g} s: {status}.")

    def result(self, timeout_seconds: float | None = None) -> Any:
        """Wait until it has succeeded, and return what rank 0 has left.

        That is what the function has returned, or what the script has given to `dlr.report_result`; None if
        there is nothing. At most 16,384 characters of JSON are kept.

        Raises:
            JobFailedError: it has failed.
            JobTimeoutError: it still goes on after so long.
            CommandError: the result could not be kept; the message says why.
        """
        self.wait(timeout_seconds)
        return result_of(self._fetch(), list_workers(self._api, self.name))

    def logs(
        self, rank: int | None = None, *, follow: bool = False, tail_lines: int | None = None
    ) -> Iterator[str]:
        """The lines that its workers print, of one node rank or of all, each of these with its worker's name.

        Args:
            follow: wait for its workers, and go on until the job ends, from each Pod to its successor.
            tail_lines: only so many last lines of each Pod.
        """
        job, found = job_and_workers(self._api, self._fetch, await_them=follow)
        workers = choose_workers(job, found, rank)
        wanted = Wanted(None, tail_lines, previous=False)
        return self._followed(job, workers, wanted) if follow else self._present(workers, wanted)

    def stacks(self, timeout_seconds: float = STACKS_SECONDS) -> str:
        """Return the present stacks of all its training processes: equal ones once, the odd ones first."""
        self._fetch()
        asked = ask(self._api, self.name, timeout_seconds)
        if not asked.stacks:
            raise CommandError(without_answer(self.name, asked, timeout_seconds))
        return "\n".join(stack_lines(merge(asked.stacks), asked.where))

    def scale(self, workers: int) -> None:
        """Ask for another count of workers."""
        self._fetch()
        set_replicas(self._api, self.name, workers)

    def delete(self, *, wait: bool = True, timeout_seconds: float = DELETE_SECONDS) -> None:
        """Delete it with everything that it made, and wait until its Pods are gone."""
        self._fetch()
        self._api.delete(ELASTICJOBS, self.name)
        if wait:
            wait_until_gone(self._api, self.name, time.monotonic() + timeout_seconds)

    def _fetch(self) -> JSON:
        """
        Raises:
            NoSuchJob: it was deleted.
        """
        job = get_job(self._api, self.name)
        if job["metadata"]["uid"] != self._uid:
            raise NoSuchJob(f"The job {self.name!r} was deleted, and another has its name now.")
        return job

    def _present(self, workers: list[JSON], wanted: Wanted) -> Iterator[str]:
        found: list[str] = []
        reasons = []
        for worker, lines in zip(workers, log_lines(workers, found.append), strict=True):
            reasons.append(send_log(self._api, worker, wanted, lines))
            yield from found
            found.clear()
        if told := [reason for reason in reasons if reason]:
            raise CommandError(" ".join(told))

    def _followed(self, job: JSON, workers: list[JSON], wanted: Wanted) -> Iterator[str]:
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        following = Following(
            self._api.connection, job, workers, wanted, lines.put, on_end=lambda: lines.put(None)
        )
        for _ in workers:
            while (line := lines.get()) is not None:
                yield line
        following.join()

    def __repr__(self) -> str:
        return f"<dlr.Job {self.namespace}/{self.name}: {self._last}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the job's state when the cluster last answered."""
        with suppress(CommandError):
            self.status()
        last = self._last
        colour = PHASE_COLOURS.get(last.phase, OTHER_COLOUR)
        rows = {} if last.finished else {"workers": f"{last.workers}/{last.desired_workers}"}
        rows["round"] = str(last.round)
        if last.step is not None:
            rows["step"] = str(last.step) + (f" of {last.total_steps}" if last.total_steps else "")
        if last.restarts:
            rows["failures"] = ", ".join(f"{name} {count}" for name, count in last.restarts.items())
        if last.why:
            rows["why"] = last.why
        cells = "".join(
            f"<tr><th style='text-align:left'>{key}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for key, value in rows.items()
        )
        return (
            f"<div><b>{html.escape(self.namespace)}/{html.escape(self.name)}</b> "
            f"<span style='color:{colour}'>{html.escape(last.phase)}</span><table>{cells}</table></div>"
        )


def result_of(job: JSON, workers: list[JSON]) -> Any:
    """What rank 0 of the last world has left; None if it has left nothing.

    Raises:
        CommandError: it could not be kept.
    """
    rank_of = report.ranks(job)
    for worker in workers:
        if worker["spec"]["type"] == "worker" and rank_of.get(worker["spec"]["index"]) == 0:
            text = ((worker.get("status") or {}).get("agent") or {}).get("result")
            kept = json.loads(text) if text else {}
            if "error" in kept:
                raise CommandError(
                    f"The result of {job['metadata']['name']!r} could not be kept: {kept['error']}."
                )
            return kept.get("value")
    return None
