"""The logs of a job's workers as lines, for `dlr job logs` and `dlr.Job.logs`.

A followed log continues through relaunches: the log of the next Pod comes after that of the replaced one, up
to the end of the job. A broken stream (after a restart of the API server) resumes after the last line.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crds import names
from crds.grouping import is_grouped
from dlr.job import report
from dlr.job.groups import refuse_grouped
from dlr.job.lookup import NoSuchJob, get_job, workers_of
from dlr.job.wording import in_command, parse_time, plain
from dlr.kube.api import ELASTICWORKERS, JSON, PODS, Api
from dlr.kube.connection import Connection
from dlr.kube.errors import ApiError, Unavailable, UsageError
from dlr.kube.following import until_finished
from dlr.kube.waiting import waiting_for
from reconcilers.observed.containers import training_container_name

MOST_STREAMS = 32
RETRY_SECONDS = 1.0
DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
NOT_RUNNING = "BadRequest"
"""Reason in the API server's refusal if the container has not started."""
WORKERS_NOT_STARTED = "WorkersNotStarted"
RANK_TWICE = re.compile(r"^(\[rank\d+\]:) ?(?=\1)")
"""The rank twice at the beginning of a line: from torch's excepthook, and from torchrun's log prefix."""


def parameters_of(pod: JSON, tail_lines: int | None = None) -> dict[str, str | int]:
    """Return the parameters of a request for a Pod's log: lines with timestamps, all or the last ones."""
    parameters: dict[str, str | int] = {"container": default_container(pod), "timestamps": "true"}
    return parameters if tail_lines is None else parameters | {"tailLines": tail_lines}


def default_container(pod: JSON) -> str:
    """Return the Pod's default container for kubectl, or the one that trains."""
    named: str | None = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER_ANNOTATION)
    return named or training_container_name(pod)


def why_no_log(pod: JSON) -> str | None:
    """Explain the lack of a log if the Pod has no node, which the API server does not; otherwise None."""
    status = pod.get("status") or {}
    if pod["spec"].get("nodeName") or status.get("phase") != "Pending":
        return None
    name = pod["metadata"]["name"]
    why = report.condition_of(pod, "PodScheduled").get("message")
    return f"{name} has no node yet: {why.rstrip('.')}." if why else f"{name} has no node yet."


def why_not_started(job: JSON, worker: JSON, failure: ApiError) -> str:
    """Explain why a Pod's container has no log yet, by the status of its worker or its job.

    Args:
        failure: the API server's error, which only says that the container waits.
    """
    name, status = worker["metadata"]["name"], worker.get("status") or {}
    if status.get("phase") == "Pending":
        messages = (
            each["message"] for each in report.warnings_of(job) if each["type"] == WORKERS_NOT_STARTED
        )
        if why := status.get("message") or next(messages, None):
            return f"{status['podName']} has not started: {why.rstrip('.')}."
    return f"{name}: {failure}"


def lines_of(stream: Iterable[str]) -> Iterator[tuple[datetime | None, str]]:
    """Yield the time and text of a log's lines, with a repeated rank removed."""
    for line in stream:
        stamp, _, text = line.partition(" ")
        yield parse_time(stamp), RANK_TWICE.sub("", text)


def send_log(api: Api, job: JSON, worker: JSON, tail_lines: int | None, lines: LogLines) -> str | None:
    """Send one log up to its present end; return the reason if that is impossible."""
    name = worker["metadata"]["name"]
    pod = (worker.get("status") or {}).get("podName")
    if not pod:
        return f"{name} has no Pod (yet)."
    try:
        found = api.get(PODS, pod)
        if why := why_no_log(found):
            return why
        with api.log(pod, parameters_of(found, tail_lines), follow=False) as stream:
            lines.take(stream)
    except ApiError as failure:
        if failure.reason == "NotFound":
            return f"The Pod {pod} is gone, and its log with it."
        if failure.reason == NOT_RUNNING:
            return why_not_started(job, worker, failure)
        return f"{name}: {failure}"
    return None


@dataclass
class Follower:
    """Follows one worker from Pod to Pod."""

    api: Api
    job: JSON
    worker: str
    tail_lines: int | None
    lines: LogLines
    finished_pod: str | None = None
    reason: str = ""
    """Last reason that was printed for the lack of a log."""
    seen: JSON = field(default_factory=dict)
    """The worker as last read."""

    def run(self) -> None:
        pause = threading.Event()
        while (seconds := self.look()) is not None:
            pause.wait(seconds)

    def look(self) -> float | None:
        """Send new lines; return the seconds until the next look, or None at the end."""
        try:
            if self._is_over():
                return None
            self._stream_current_pod()
        except Unavailable as outage:
            # Without a limit: the user can stop following at any time.
            return max(RETRY_SECONDS, outage.retry_after_seconds)
        return RETRY_SECONDS

    def _is_over(self) -> bool:
        """Whether the job has ended and its last Pod's log is shown, or the job is gone."""
        try:
            job = get_job(self.api, self.job["metadata"]["name"])
        except NoSuchJob:
            return True
        if job["metadata"]["uid"] != self.job["metadata"]["uid"]:
            return True
        self.job = job
        return report.is_finished(job) and self._next_pod() is None

    def _next_pod(self) -> str | None:
        """Return the worker's Pod, unless all of its log has been shown."""
        try:
            self.seen = self.api.get(ELASTICWORKERS, self.worker)
        except ApiError as failure:
            if failure.reason == "NotFound":
                return None
            raise
        pod: str | None = (self.seen.get("status") or {}).get("podName")
        return pod if pod != self.finished_pod else None

    def _stream_current_pod(self) -> None:
        pod_name = self._next_pod()
        if pod_name is None:
            return
        try:
            pod = self.api.get(PODS, pod_name)
            if why := why_no_log(pod):
                self._print_reason(why)
                return
            with self.api.log(pod_name, self._parameters(pod), follow=True) as stream:
                self.lines.take(stream)
            if _has_ended(self.api.get(PODS, pod_name)):
                self.finished_pod = pod_name
        except ApiError as failure:
            if failure.reason == "NotFound":
                self.finished_pod = pod_name
            elif failure.reason != NOT_RUNNING:
                raise
            else:
                self._print_reason(why_not_started(self.job, self.seen, failure))

    def _print_reason(self, why: str) -> None:
        """Print the reason for waiting to standard error."""
        if why != self.reason:
            self.reason = why
            print(f"dlr: waiting: {plain(why)}", file=sys.stderr, flush=True)

    def _parameters(self, pod: JSON) -> dict[str, str | int]:
        parameters = parameters_of(pod, self.tail_lines)
        if self.lines.last_time:
            parameters.pop("tailLines", None)
            parameters["sinceTime"] = self.lines.last_time.isoformat(timespec="seconds").replace(
                "+00:00", "Z"
            )
        return parameters


def _has_ended(pod: JSON) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


class LogLines:
    """Forwards lines without their timestamps, each once, however often the stream restarts."""

    def __init__(self, worker: str, send: Callable[[str], None]) -> None:
        """
        Args:
            worker: name in front of each line; "" for none.
            send: takes a line without its line break.
        """
        self.prefix = f"[{worker}] " if worker else ""
        self.send = send
        self.last_time: datetime | None = None

    def take(self, stream: Iterable[str]) -> None:
        resumed_after = self.last_time
        for moment, text in lines_of(stream):
            if resumed_after and moment and moment <= resumed_after:
                continue
            self.last_time = moment or self.last_time
            self.send(f"{self.prefix}{text}")


def log_lines(workers: Sequence[JSON], send: Callable[[str], None]) -> list[LogLines]:
    """Return a `LogLines` for each worker; with several workers, each line names its worker."""
    return [LogLines(worker["metadata"]["name"] if len(workers) > 1 else "", send) for worker in workers]


def present(api: Api, job: JSON, workers: Sequence[JSON], tail_lines: int | None) -> Iterator[str]:
    """Yield all present lines, worker by worker.

    Raises:
        ApiError: some logs could not be read; raised after the lines of the others.
    """
    found: list[str] = []
    reasons = []
    for worker, lines in zip(workers, log_lines(workers, found.append), strict=True):
        reasons.append(send_log(api, job, worker, tail_lines, lines))
        yield from found
        found.clear()
    if missing := [reason for reason in reasons if reason]:
        raise ApiError("\n     ".join(missing))


def followed(
    connection: Connection, job: JSON, workers: Sequence[JSON], tail_lines: int | None
) -> Iterator[str]:
    """Yield lines as they arrive, up to the end of the job; the first error is raised at once.

    Each worker has a thread, since a stream blocks while its container is silent.
    """
    came: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()

    def follow_one(worker: JSON, lines: LogLines) -> None:
        try:
            Follower(Api(connection), job, worker["metadata"]["name"], tail_lines, lines).run()
            came.put(None)
        except Exception as error:
            came.put(error)

    for pair in zip(workers, log_lines(workers, came.put), strict=True):
        threading.Thread(target=follow_one, args=pair, daemon=True).start()
    for _ in workers:
        while (item := came.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


def job_and_workers(api: Api, fetch: Callable[[], JSON], *, await_them: bool) -> tuple[JSON, list[JSON]]:
    """Return the job and its workers, at once or after the controller has created them.

    A job that has ended or is suspended gets none, and is not waited for.

    Args:
        fetch: returns the present job.
        await_them: whether to wait for the workers.
    """

    def seen() -> tuple[JSON, list[JSON]]:
        job = fetch()
        return job, workers_of(api, job)

    def are_made(found: tuple[JSON, list[JSON]]) -> bool:
        job, workers = found
        if report.is_finished(job) or job["spec"].get("suspend"):
            return True
        training = sum(worker["spec"]["type"] == names.WORKER for worker in workers)
        wanted = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("replicas", 1)
        return training >= wanted or (training > 0 and report.phase(job) == "Running")

    found = seen()  # an unreachable cluster is an error here, but not later
    if await_them and not are_made(found):
        with waiting_for("the job's workers to be made"):
            *_, found = until_finished(seen, are_made)
    return found


def choose_workers(job: JSON, workers: list[JSON], rank: int | None) -> list[JSON]:
    """Return the training workers in rank order, or one of them; with parameter servers all workers."""
    name = job["metadata"]["name"]
    if rank is not None:
        refuse_grouped(job, "job logs", f"--rank {rank}")
    is_cluster = bool(job["spec"]["replicaSpecs"].get(names.PS, {}).get("replicas"))
    types = [names.CHIEF, names.WORKER, names.EVALUATOR, names.PS] if is_cluster else [names.WORKER]
    ordered = workers if is_grouped(job) else report.sort_workers(workers)
    training = [worker for type_ in types for worker in ordered if worker["spec"]["type"] == type_]
    if is_cluster and rank is not None:
        raise UsageError(f"ElasticJob {name!r} has parameter servers, and so no ranks; drop --rank.")
    if not training:
        raise ApiError(
            f"ElasticJob {name!r} has no workers; `dlr job status {in_command(job['metadata'])}` says why."
        )
    if rank is None:
        if len(training) > MOST_STREAMS:
            option = "a group with --group" if is_grouped(job) else "one with --rank"
            raise UsageError(f"ElasticJob {name!r} has {len(training)} workers; choose {option}.")
        return training
    # Before the first world, a worker's index stands for its rank.
    rank_of = report.ranks(job) or {worker["spec"]["index"]: worker["spec"]["index"] for worker in training}
    for worker in training:
        if rank_of.get(worker["spec"]["index"]) == rank:
            return [worker]
    raise UsageError(f"ElasticJob {name!r} has no rank {rank}; its ranks are 0 to {len(rank_of) - 1}.")
