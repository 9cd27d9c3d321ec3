"""`dlr job logs`: what the workers print, of one rank, of all, or of the one that failed.

Followed, a worker's log goes on through its relaunches: when its Pod is replaced the next Pod's log comes
after it, and the end comes with the end of the job. A stream that breaks off (an API server restarted) is
taken up again after the last line that was shown.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import typer

from crds import names
from dlr.commands.api import ELASTICWORKERS, PODS, Api, ApiFailure, Unreachable
from dlr.commands.connection import Connection, connect
from dlr.commands.errors import CommandError, UsageError
from dlr.commands.job import report
from dlr.commands.job.failed_log import print_failed_log
from dlr.commands.job.lookup import NoSuchJob, get_job, list_workers
from dlr.commands.job.pod_log import Wanted, named_once, why_no_log
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, not_empty
from dlr.commands.output import parse_time

JSON = dict[str, Any]

MOST_STREAMS = 32
RETRY_SECONDS = 1.0
LAST_LINE_SECONDS = 0.5


def logs(
    name: JobName,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the worker with this node rank.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, from Pod to Pod.")
    ] = False,
    container: Annotated[
        str | None, typer.Option("--container", "-c", callback=not_empty, help="Not the training container.")
    ] = None,
    tail_lines: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only so many last lines a Pod.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the container's run before its last restart.")
    ] = False,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Of the rank that failed first, up to its failure, with what it said."),
    ] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print what a job's workers print."""
    connection = connect(kubeconfig, context, namespace)
    api = Api(connection)
    if failed:
        if rank is not None or follow or previous:
            raise UsageError("--failed finds the rank and the Pod itself; drop --rank, -f and -p.")
        print_failed_log(api, name, Wanted(container, tail_lines, previous=False))
        return
    job = get_job(api, name)
    workers = choose_workers(job, list_workers(api, name), rank)
    wanted = Wanted(container, tail_lines, previous)
    lines = [_Printer(worker["metadata"]["name"] if len(workers) > 1 else "") for worker in workers]
    if follow:
        _follow_all(connection, job, workers, wanted, lines)
        return
    failures = [
        _print_log(api, worker, wanted, printer) for worker, printer in zip(workers, lines, strict=True)
    ]
    if told := [failure for failure in failures if failure]:
        raise CommandError("\n     ".join(told))


def choose_workers(job: JSON, workers: list[JSON], rank: int | None) -> list[JSON]:
    """The training workers in rank order, or the one of that rank."""
    name = job["metadata"]["name"]
    training = [worker for worker in report.sort_workers(workers) if worker["spec"]["type"] == names.WORKER]
    if not training:
        raise CommandError(f"ElasticJob {name!r} has no workers; `dlr job status {name}` says why.")
    if rank is None:
        if len(training) > MOST_STREAMS:
            raise UsageError(f"ElasticJob {name!r} has {len(training)} workers; choose one with --rank.")
        return training
    # Before the first world the slot's index is what the rank will be.
    rank_of = report.ranks(job) or {worker["spec"]["index"]: worker["spec"]["index"] for worker in training}
    for worker in training:
        if rank_of.get(worker["spec"]["index"]) == rank:
            return [worker]
    raise UsageError(f"ElasticJob {name!r} has no rank {rank}; its ranks are 0 to {len(rank_of) - 1}.")


def _print_log(api: Api, worker: JSON, wanted: Wanted, printer: _Printer) -> str | None:
    """Print one log to its present end; the reason if that cannot be."""
    name = worker["metadata"]["name"]
    pod = (worker.get("status") or {}).get("podName")
    if not pod:
        return f"{name} has no Pod (yet)."
    try:
        found = api.get(PODS, pod)
        if why := why_no_log(found):
            return why
        with api.log(pod, wanted.parameters(found), follow=False) as lines:
            printer.print(lines)
    except ApiFailure as failure:
        if failure.reason == "NotFound":
            return f"The Pod {pod} is gone, and its log with it."
        return f"{name}: {failure}"
    return None


def _follow_all(
    connection: Connection, job: JSON, workers: list[JSON], wanted: Wanted, printers: list[_Printer]
) -> None:
    """One thread a worker: a stream blocks for as long as its container is silent."""
    failures: list[BaseException] = []

    def follow_one(worker: JSON, printer: _Printer) -> None:
        try:
            _Follower(Api(connection), job, worker["metadata"]["name"], wanted, printer).run()
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=follow_one, args=pair, daemon=True)
        for pair in zip(workers, printers, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        _Printer.lock.acquire(timeout=LAST_LINE_SECONDS)  # none of them writes while the interpreter ends
        raise
    if failures:
        raise failures[0]


@dataclass
class _Follower:
    """Follows one worker from Pod to Pod."""

    api: Api
    job: JSON
    worker: str
    wanted: Wanted
    printer: _Printer
    finished_pod: str | None = None
    said: str = ""
    """Why there is nothing to follow yet."""
    pause: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while True:
            try:
                if self._is_over():
                    return
                self._stream_current_pod()
            except Unreachable:
                # However long the API server is away: the person who follows may end it at any time.
                pass
            self.pause.wait(RETRY_SECONDS)

    def _is_over(self) -> bool:
        """The job has ended and its last Pod's log is shown, or the job is gone."""
        try:
            job = get_job(self.api, self.job["metadata"]["name"])
        except NoSuchJob:
            return True
        if job["metadata"]["uid"] != self.job["metadata"]["uid"]:
            return True
        return report.is_finished(job) and self._next_pod() is None

    def _next_pod(self) -> str | None:
        """The worker's Pod, unless all of its log has been shown."""
        try:
            worker = self.api.get(ELASTICWORKERS, self.worker)
        except ApiFailure as failure:
            if failure.reason == "NotFound":
                return None
            raise
        pod: str | None = (worker.get("status") or {}).get("podName")
        return pod if pod != self.finished_pod else None

    def _stream_current_pod(self) -> None:
        pod_name = self._next_pod()
        if pod_name is None:
            return
        try:
            pod = self.api.get(PODS, pod_name)
            if why := why_no_log(pod):
                self._say_once(why)
                return
            with self.api.log(pod_name, self._parameters(pod), follow=True) as lines:
                self.printer.print(lines)
            if _has_ended(self.api.get(PODS, pod_name)):
                self.finished_pod = pod_name
        except ApiFailure as failure:
            if failure.reason == "NotFound":
                self.finished_pod = pod_name
            elif failure.reason != "BadRequest":  # the container is not running yet
                raise
            else:
                self._say_once(f"{failure}.")

    def _say_once(self, why: str) -> None:
        """Beside the log: what keeps it waiting."""
        if why != self.said:
            self.said = why
            with self.printer.lock:
                print(f"dlr: waiting: {why}", file=sys.stderr, flush=True)

    def _parameters(self, pod: JSON) -> dict[str, str | int]:
        parameters = self.wanted.parameters(pod)
        if self.printer.last_time:
            parameters.pop("tailLines", None)
            parameters["sinceTime"] = self.printer.last_time.isoformat(timespec="seconds").replace(
                "+00:00", "Z"
            )
        return parameters


def _has_ended(pod: JSON) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


class _Printer:
    """Prints stamped lines without their stamps, each once, however often the stream starts anew."""

    lock = threading.Lock()

    def __init__(self, prefix: str) -> None:
        self.prefix = f"[{prefix}] " if prefix else ""
        self.last_time: datetime | None = None

    def print(self, lines: Iterator[str]) -> None:
        resumed_after = self.last_time
        for line in lines:
            stamp, _, text = line.partition(" ")
            moment = parse_time(stamp)
            if resumed_after and moment and moment <= resumed_after:
                continue
            self.last_time = moment or self.last_time
            with self.lock:
                sys.stdout.write(f"{self.prefix}{named_once(text)}\n")
                sys.stdout.flush()
