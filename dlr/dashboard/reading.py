"""Reads the content of pages from the API server. It blocks, so it is called in threads."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol

from crds import names
from crds.grouping import is_grouped
from dlr.dashboard.fleet import LEAD_SELECTOR, fleet_page
from dlr.dashboard.job_page import job_page
from dlr.job.case import read_case
from dlr.job.logs import NOT_RUNNING, lines_of, parameters_of, why_no_log, why_not_started
from dlr.job.lookup import NoSuchJob, get_job, list_workers
from dlr.job.report import ranks
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.wording import utc_now
from dlr.kube.api import ELASTICJOBS, ELASTICWORKERS, JSON, PODS, Api
from dlr.kube.errors import ApiError

LOG_LINES = 300
LOG_BYTES = 256 * 1024


class View(Protocol):
    """Source of a page's content."""

    def read(self) -> JSON:
        """Return the content.

        Raises:
            ApiError: the cluster cannot be read; the message is a sentence.
        """


class FleetView:
    def __init__(self, api: Api, *, all_namespaces: bool) -> None:
        self.api = api
        self.all_namespaces = all_namespaces

    def read(self) -> JSON:
        of_all = self.all_namespaces
        try:
            jobs = self.api.find(ELASTICJOBS, all_namespaces=of_all)
            leads = self.api.find(ELASTICWORKERS, all_namespaces=of_all, label_selector=LEAD_SELECTOR)
        except ApiError as failure:
            if failure.status != HTTPStatus.FORBIDDEN or not of_all:
                raise
            raise ApiError(f"{failure}. Of one namespace: dlr dashboard -n NAMESPACE") from failure
        page = fleet_page(jobs, leads, utc_now())
        return page | {"namespace": None if of_all else self.api.namespace}


class JobView:
    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.pods: dict[int, tuple[str, str | None]] | None = None
        """Worker and Pod by rank, from the last reading."""

    def read(self) -> JSON:
        with naming_what_cannot_be_read(self.name):
            case = read_case(self.api, self.name)
            self.pods = {} if is_grouped(case.job) else _pods(case.job, case.workers)
            return job_page(case)

    def log(self, rank: int) -> JSON:
        """Return the end of the log of the worker with that node rank.

        Raises:
            ApiError: the log cannot be read; the message is a sentence.
        """
        if self.pods is None:
            self.pods = _pods(get_job(self.api, self.name), list_workers(self.api, self.name))
        if rank not in self.pods:
            raise NoSuchJob(f"ElasticJob {self.name!r} has no rank {rank} of its own.")
        worker, pod = self.pods[rank]
        if pod is None:
            return {"pod": None, "lines": [], "note": f"{worker} has no Pod (yet)."}
        return {"pod": pod} | self._log_of(worker, pod)

    def _log_of(self, worker: str, pod: str) -> JSON:
        try:
            return _log_of(self.api, pod)
        except ApiError as failure:
            if failure.reason != NOT_RUNNING:
                raise
            job = get_job(self.api, self.name)
            return {"lines": [], "note": why_not_started(job, self.api.get(ELASTICWORKERS, worker), failure)}


def _pods(job: JSON, workers: Iterable[JSON]) -> dict[int, tuple[str, str | None]]:
    """Return worker and Pod by rank; before the first world, a worker's index stands for its rank."""
    rank_of = ranks(job)
    found = {}
    for worker in workers:
        index = worker["spec"]["index"]
        rank = rank_of.get(index, None if rank_of else index)
        if worker["spec"]["type"] == names.WORKER and rank is not None:
            found[rank] = worker["metadata"]["name"], (worker.get("status") or {}).get("podName") or None
    return found


def _log_of(api: Api, pod: str) -> JSON:
    try:
        found = api.get(PODS, pod)
        if why := why_no_log(found):
            return {"lines": [], "note": why}
        parameters = parameters_of(found, LOG_LINES) | {"limitBytes": LOG_BYTES}
        with api.log(pod, parameters, follow=False) as lines:
            return {"lines": [text for _, text in lines_of(lines)], "note": ""}
    except ApiError as failure:
        if failure.reason == "NotFound":
            return {"lines": [], "note": f"The Pod {pod} is gone, and its log with it."}
        raise
