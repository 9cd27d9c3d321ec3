"""One job with its objects, as read from the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from controller.wording import shortened
from crds.grouping import is_grouped
from crds.job_spec import ElasticPolicy
from crds.job_status import Goodput
from crds.phases import RendezvousPhase
from dlr.job import report
from dlr.job.advice import UNSCHEDULABLE
from dlr.job.failures import Culprit, find_culprit
from dlr.job.goodput import account_of
from dlr.job.lookup import find_nodes, get_job, groups_of, shard_sets_of, workers_of
from dlr.job.progress import JobProgress, SetProgress, checkpoints_line, progress_of, sets_of
from dlr.job.report import current_report, warnings_of
from dlr.job.timeline.episodes import PastFailure
from dlr.job.timeline.life import JobTimeline, NoHistory, life_of
from dlr.job.wording import EPOCH, in_command, parse_time, plain, utc_now
from dlr.kube.api import EVENTS, JSON, NODECHECKS, NODES, Api
from dlr.kube.errors import Forbidden, NotFound
from reconcilers.goodput.goodput import AFTER_A_FAILURE
from reconcilers.observed.behind import WorkerPace, far_behind

MOST_CHARACTERS = 600
"""Longest sentence; messages in a cluster have no limit."""
FEWEST_PACES = 2
"""Fewest workers whose steps can be compared."""
STALLED_STEPS = 20
STALLED_SECONDS = 60.0
"""Time without a step after which a job stalls: so many usual steps, and at least so many seconds. Agents
report every few seconds."""


@dataclass(frozen=True)
class Sentence:
    text: str
    lines: tuple[str, ...] = ()
    """Lines of a traceback or of stacks below the sentence."""

    def as_json(self) -> JSON:
        return {"text": self.text} | ({"lines": list(self.lines)} if self.lines else {})


@dataclass(frozen=True)
class Stall:
    seconds: float
    """The time since the last step of any rank."""
    worker: JSON
    """The worker furthest behind."""
    step: int | None


@dataclass(frozen=True)
class Case:
    """The objects of one job at one time."""

    job: JSON
    workers: list[JSON]
    """The workers in order."""
    events: Sequence[JSON]
    """Events of the job, its workers and its Pods, the oldest first."""
    now: datetime
    checks: Sequence[JSON] = ()
    """NodeChecks of the job's namespace."""
    nodes: Sequence[JSON] = ()
    """The readable nodes among those of the job's Pods."""
    all_nodes: Sequence[JSON] = ()
    """All nodes of the cluster, if the job waits for room."""
    groups: Sequence[JSON] = ()
    """The ElasticJobs of its replica groups in order."""
    sets: Sequence[JSON] = ()
    """Its ShardSets."""
    unread: Sequence[str] = ()
    """A sentence for each kind of objects that may not be read."""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def in_command(self) -> str:
        return in_command(self.job["metadata"])

    @property
    def status(self) -> JSON:
        return self.job.get("status") or {}

    @property
    def world(self) -> JSON:
        return self.status.get("rendezvous") or {}

    @cached_property
    def account(self) -> Goodput | None:
        return account_of(self.job, self.workers, self.now, self.groups)

    @cached_property
    def progress(self) -> JobProgress | None:
        return progress_of(self.job, self.workers, self.account.last_step if self.account else None)

    @cached_property
    def reports(self) -> list[tuple[JSON, JSON]]:
        """Return all workers, each with the report of its current incarnation's agent."""
        return [(worker, current_report(worker)) for worker in self.workers]

    @cached_property
    def telling(self) -> list[tuple[JSON, JSON]]:
        """Return the workers whose agents report progress, each with its `status.agent.progress`."""
        return [(worker, progress) for worker, each in self.reports if (progress := each.get("progress"))]

    @cached_property
    def checkpoints(self) -> str:
        return checkpoints_line(self.job, self.workers)

    @cached_property
    def shard_sets(self) -> list[SetProgress]:
        return sets_of(self.job, self.sets, self.workers, self.now)

    @cached_property
    def culprit(self) -> Culprit | None:
        return find_culprit(self.job, self.workers)

    @cached_property
    def life(self) -> JobTimeline | None:
        """Return the job's life; None before its controller has kept any of it."""
        ratio = self.account.ratio if self.account else None
        try:
            return life_of(self.job, self.workers, ratio, self.now, self.groups)
        except NoHistory:
            return None

    @cached_property
    def failure_of(self) -> dict[str, PastFailure]:
        """Return the last failure of each worker that the job's history names as its cause."""
        return {each.worker: each for each in self.life.failures} if self.life else {}

    def seconds_since(self, failure: PastFailure) -> float:
        """Return the age of a failure in the job's history."""
        submitted = parse_time(self.job["metadata"]["creationTimestamp"]) or EPOCH
        return (self.now - submitted).total_seconds() - failure.at

    @property
    def trains(self) -> bool:
        """Whether the job has a formed world, or replica groups that train together."""
        formed = is_grouped(self.job) or self.world.get("phase") == RendezvousPhase.FORMED
        runs = report.phase(self.job) in ("Running", "Scaling")
        return runs and formed and not (self.account and self.account.state in AFTER_A_FAILURE)

    @cached_property
    def stall(self) -> Stall | None:
        """Return the stall of a formed world that has made no step for much longer than a step takes."""
        steps = [
            (moment, worker, progress)
            for worker, progress in self.telling
            if (moment := parse_time(progress.get("time")))
        ]
        if not steps or not self.trains:
            return None
        usual = self.progress.seconds_per_step if self.progress else None
        newest = max(moment for moment, _, _ in steps)
        silent = (self.now - newest).total_seconds()
        formed = parse_time(self.world.get("formedAt"))
        is_of_another_world = formed is not None and formed > newest
        if is_of_another_world or silent < max(STALLED_SECONDS, STALLED_STEPS * (usual or 0.0)):
            return None
        _, worker, progress = min(steps, key=lambda each: (each[2].get("step", 0), each[0]))
        return Stall(silent, worker, progress.get("step"))

    @cached_property
    def paces(self) -> list[WorkerPace]:
        """Return the steps of the workers of the present round; empty for groups, which count their own."""
        telling = [] if is_grouped(self.job) else self.telling
        return [
            WorkerPace(worker["metadata"]["name"], progress["step"], progress.get("secondsPerStep"))
            for worker, progress in telling
            if "step" in progress and _is_of_round(worker, self.world.get("round"))
        ]

    @cached_property
    def far_behind(self) -> list[JSON]:
        """Return the workers that are far behind the others, among those that were read."""
        policy = self.job["spec"].get("elasticPolicy") or {}
        timeout = float(policy.get("heartbeatTimeoutSeconds") or ElasticPolicy().heartbeat_timeout_seconds)
        late = {each.worker for each in far_behind(self.paces, timeout)}
        return [worker for worker in self.workers if worker["metadata"]["name"] in late]

    @cached_property
    def behind(self) -> int:
        """Return the number of workers far behind the others; without their reports, from the warning."""
        if len(self.paces) >= FEWEST_PACES:
            return len(self.far_behind)
        warning = self.warning("RanksBehind")
        return 0 if warning is None else int((warning.get("data") or {}).get("count") or 1)

    @cached_property
    def node_names(self) -> frozenset[str]:
        """Return the nodes of the job's present Pods."""
        found = ((worker.get("status") or {}).get("nodeName") for worker in self.workers)
        return frozenset(name for name in found if name)

    def warning(self, type_: str) -> JSON | None:
        """Return the job's warning of that type, if it has one."""
        return next((dict(each) for each in warnings_of(self.job) if each.get("type") == type_), None)


def _is_of_round(worker: JSON, round_: int | None) -> bool:
    """Whether the steps that a worker reports are of this round."""
    rounds = current_report(worker).get("rounds") or ()
    return not rounds or rounds[-1].get("round") == round_


def sentence(text: str, lines: Iterable[str] = ()) -> Sentence:
    """Return one line that ends with a full stop."""
    short = shortened(plain(text), MOST_CHARACTERS)
    return Sentence(short if short.endswith((".", "…", "?", "!")) else f"{short}.", tuple(lines))


def read_people(api: Api, name: str, *, with_events: bool = True) -> Case:
    """Read a job with its groups, workers and Events."""
    job = get_job(api, name)
    groups = groups_of(api, job)
    workers = workers_of(api, job, groups)
    workers = workers if is_grouped(job) else report.sort_workers(workers)
    unread: list[str] = []
    found = _readable(lambda: api.find(EVENTS), "Events", unread) if with_events else []
    events, sets = report.job_events(found, job), shard_sets_of(api, job)
    return Case(job, workers, events, utc_now(), groups=groups, sets=sets, unread=unread)


def read_case(api: Api, name: str) -> Case:
    """Read a job with everything that a diagnosis needs."""
    case = read_people(api, name)
    unread = [*case.unread]
    checks = _readable(lambda: api.find(NODECHECKS), "NodeChecks", unread)
    hosts = {host for worker in case.workers if (host := (worker.get("status") or {}).get("nodeName"))}
    nodes = _readable(lambda: find_nodes(api, hosts), "Nodes", unread)
    waits = case.status.get("reason") == UNSCHEDULABLE
    every = _readable(lambda: api.find(NODES), "Nodes", unread) if waits else []
    unread = list(dict.fromkeys(unread))
    return replace(case, now=utc_now(), checks=checks, nodes=nodes, all_nodes=every, unread=unread)


def _readable(read: Callable[[], list[JSON]], what: str, unread: list[str]) -> list[JSON]:
    """Return the objects; if they may not be read, none, and a sentence in `unread`."""
    try:
        return read()
    except (Forbidden, NotFound) as refusal:
        unread.append(f"{what} could not be read: {refusal}")
        return []
