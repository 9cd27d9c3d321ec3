"""What a page shows, read from the API server. It blocks, so it is called in threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TypeVar

from crds import names
from crds.grouping import is_grouped
from dlr.dashboard.fleet import LEAD_SELECTOR, fleet_page
from dlr.dashboard.job_page import job_page
from dlr.dashboard.watching import WatchingApi
from dlr.job.case import read_case
from dlr.job.logs import lines_of, parameters_of, why_no_log
from dlr.job.lookup import NoSuchJob, get_job, list_workers
from dlr.job.report import ranks
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.wording import utc_now
from dlr.kube.api import ELASTICJOBS, ELASTICWORKERS, JSON, PODS, Api
from dlr.kube.errors import ApiError

Answer = TypeVar("Answer")

LOG_LINES = 300
LOG_BYTES = 256 * 1024


class View(ABC):
    """A page's content, read with lists that a watch keeps up to date.

    Args:
        api: the API server. Other threads may ask it too.
    """

    def __init__(self, api: Api) -> None:
        self.api = api
        self._watching: WatchingApi | None = None

    @abstractmethod
    def read(self) -> JSON: ...

    def ask(self, question: Callable[[Api], Answer]) -> Answer:
        """Return the question's answer. After a failure everything is read again.

        Raises:
            ApiError: what went wrong, in a sentence.
        """
        self._watching = self._watching or WatchingApi(self.api)
        try:
            return question(self._watching)
        except ApiError:
            self.rest()
            raise

    def rest(self) -> None:
        """Drop what was kept for the next reading: no page is open."""
        if self._watching is not None:
            self._watching.forget()
        self._watching = None


class FleetView(View):
    def __init__(self, api: Api, *, all_namespaces: bool) -> None:
        super().__init__(api)
        self.all_namespaces = all_namespaces

    def read(self) -> JSON:
        of_all = self.all_namespaces

        def ask(api: Api) -> JSON:
            jobs = api.find(ELASTICJOBS, all_namespaces=of_all)
            leads = api.find(ELASTICWORKERS, all_namespaces=of_all, label_selector=LEAD_SELECTOR)
            return fleet_page(jobs, leads, utc_now())

        try:
            page = self.ask(ask)
        except ApiError as failure:
            if failure.status != HTTPStatus.FORBIDDEN or not of_all:
                raise
            raise ApiError(f"{failure}. Of one namespace: dlr dashboard -n NAMESPACE") from failure
        return page | {"namespace": None if of_all else self.api.namespace}


class JobView(View):
    def __init__(self, api: Api, name: str) -> None:
        super().__init__(api)
        self.name = name
        self.pods: dict[int, tuple[str, str | None]] | None = None
        """By rank, the worker and its Pod, as read last."""

    def read(self) -> JSON:
        with naming_what_cannot_be_read(self.api, self.name):
            case, unread = self.ask(lambda api: read_case(api, self.name))
            self.pods = {} if is_grouped(case.job) else _pods(case.job, case.workers)
            return job_page(case, unread)

    def log(self, rank: int) -> JSON:
        """Return the end of the log of the worker with that node rank.

        Raises:
            ApiError: what keeps it from being read, in a sentence.
        """
        if self.pods is None:
            self.pods = _pods(get_job(self.api, self.name), list_workers(self.api, self.name))
        if rank not in self.pods:
            raise NoSuchJob(f"ElasticJob {self.name!r} has no rank {rank} of its own.")
        worker, pod = self.pods[rank]
        if pod is None:
            return {"pod": None, "lines": [], "note": f"{worker} has no Pod (yet)."}
        return {"pod": pod} | _log_of(self.api, pod)


def _pods(job: JSON, workers: Iterable[JSON]) -> dict[int, tuple[str, str | None]]:
    """Return worker and Pod by rank. Before the first world the slot's index is what the rank will be."""
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
        if failure.reason == "BadRequest":  # its container does not run yet
            return {"lines": [], "note": f"{failure}"}
        raise
