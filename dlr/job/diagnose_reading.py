"""What a diagnosis reads of a job from the API server."""

from __future__ import annotations

from collections.abc import Callable

from crds.further_nodes import whole
from dlr.job import report
from dlr.job.diagnose_case import JSON, Case
from dlr.job.diagnose_words import UNSCHEDULABLE
from dlr.job.lookup import get_job, list_workers
from dlr.job.wording import utc_now
from dlr.kube.api import EVENTS, NODECHECKS, NODES, Api, ApiFailure

MOST_GETS = 20


def read_case(api: Api, name: str) -> tuple[Case, list[str]]:
    """What there is to know, and what could not be read, a sentence each: nobody needs all rights for it."""
    job, workers = get_job(api, name), report.sort_workers(list_workers(api, name))
    unread: list[str] = []
    events = _readable(lambda: api.find(EVENTS), "Events", unread)
    checks = [whole(check) for check in _readable(lambda: api.find(NODECHECKS), "NodeChecks", unread)]
    hosts = {host for worker in workers if (host := (worker.get("status") or {}).get("nodeName"))}
    nodes = _readable(lambda: _nodes(api, hosts), "Nodes", unread)
    waits = (job.get("status") or {}).get("reason") == UNSCHEDULABLE
    every = _readable(lambda: api.find(NODES), "Nodes", unread) if waits else []
    case = Case(job, workers, report.job_events(events, job), checks, nodes, utc_now(), every)
    return case, list(dict.fromkeys(unread))


def _nodes(api: Api, hosts: set[str]) -> list[JSON]:
    """A few one by one, since a cluster may have thousands; of more, all at once."""
    if len(hosts) > MOST_GETS:
        return [node for node in api.find(NODES) if node["metadata"]["name"] in hosts]
    found = []
    for host in sorted(hosts):
        try:
            found.append(api.get(NODES, host))
        except ApiFailure as failure:
            if failure.reason != "NotFound":
                raise
    return found


def _readable(read: Callable[[], list[JSON]], what: str, unread: list[str]) -> list[JSON]:
    try:
        return read()
    except ApiFailure as failure:
        unread.append(f"{what} could not be read: {failure}")
        return []
