"""Warnings that follow from agents' reports: steps, losses, checkpoints, silence, use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from controller.wording import and_more, counted, some_of
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobState, JobWarning
from crds.model import ConditionData
from crds.phases import RendezvousPhase
from crds.ranges import as_ranges
from crds.rendezvous import Rendezvous
from reconcilers.failure.incidents import ranks_of
from reconcilers.goodput.goodput import seconds_by_state, start_is_unknown
from reconcilers.look import DesiredJob, WarningState
from reconcilers.observed.behind import MOST_NAMED, WorkerPace, behind_line, far_behind
from reconcilers.observed.command import rendezvous_elsewhere
from reconcilers.observed.conditions import condition_of, data_of, warning_of
from reconcilers.observed.minimum import plain_variables
from reconcilers.observed.worker_state import (
    HEARTBEAT_ON_TIME,
    SIDECARS_WELL,
    current_report,
    silent_since,
)
from reconcilers.observed.workers import Workers
from reconcilers.world.reported_faults import are_doubted, reports_on

NON_FINITE_LOSS = "NonFiniteLoss"
CHECKPOINTS_FAILING = "CheckpointsFailing"
AGENTS_SILENT, AGENTS_UNHEARD = "AgentsSilent", "AgentsUnheard"
HEARTBEAT_LATE, RANKS_BEHIND = "HeartbeatLate", "RanksBehind"
SIDECARS_FAILED = "SidecarsFailed"
NODES_REPORTED = "NodesReportedFaulty"
PROCESS_LINGERS = "ProcessLingers"
NO_STEPS, START_UNKNOWN = "NoSteps", "StartUnknown"

NO_STEPS_MESSAGE = (
    "no step in {minutes:g} min of training: hangs are not found (hangTimeoutSeconds has no effect), and "
    "there is no goodput. Call dlr.report(step) in the script. Without it, the steps of torch's "
    "optimizers are counted, but only in processes that dlr run forks (docs/hangs.md)"
)
START_UNKNOWN_MESSAGE = (
    "it is unknown which step the last start went on with: its optimizer keeps no number of its steps, as "
    "SGD, or was not loaded. Goodput is at least the ratio shown, since all earlier steps count as trained "
    "again; and its errors spend restartCount, which ends the job however far it gets in between. Call "
    "dlr.report(step), and both are exact"
)
PATIENCE_FACTOR = 3
"""Time limit for the first step, as a multiple of `hangTimeoutSeconds`."""
UNHEARD_SECONDS = 120.0
"""Time of a running Pod until its agent should have reported: imports from a cold disk take a minute."""
BEHIND_LOOK_SECONDS = 300.0
BEHIND_LOOK_AGAIN_SECONDS = 30.0
"""Reported steps do not trigger a reconcile of the job."""


def no_steps(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge whether training makes steps that are reported or counted."""
    job, workers = look.job, look.workers.reporting_steps
    if _has_steps(job, workers):
        return None
    left_seconds = seconds_to_notice(job, workers, look.now)
    if left_seconds is None or left_seconds > 0:
        return before
    return WarningState(NO_STEPS_MESSAGE.format(minutes=round(_patience_seconds(job) / 60, 1)))


def seconds_to_notice(job: ElasticJob, workers: Sequence[ElasticWorker], now: datetime) -> float | None:
    """Return the time left for the first step; None once there is one, or the warning.

    Without a step, the account takes the time for training in which all members run.
    """
    goodput = job.status.goodput
    if goodput is None or goodput.state is not JobState.TRAINING or _has_steps(job, workers):
        return None
    if warning_of(job.status.warnings, NO_STEPS) is not None:
        return None
    return _patience_seconds(job) - seconds_by_state(goodput, now).get(JobState.TRAINING, 0.0)


def _has_steps(job: ElasticJob, workers: Sequence[ElasticWorker]) -> bool:
    goodput = job.status.goodput
    if goodput is not None and goodput.latest is not None:
        return True
    return any(worker.status.agent is not None and worker.status.agent.rounds for worker in workers)


def _patience_seconds(job: ElasticJob) -> float:
    return PATIENCE_FACTOR * job.spec.elastic_policy.hang_timeout_seconds


def start_unknown(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    return WarningState(START_UNKNOWN_MESSAGE) if start_is_unknown(look.job.status.goodput) else None


def non_finite_loss(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge the losses of the newest round with steps."""
    job, workers = look.job, look.workers  # ranks are those of the published world
    reports = [(w, w.status.agent.rounds[-1]) for w in workers.reporting_steps if w.status.agent]
    newest = max((figures.round for _, figures in reports), default=0)
    found = [
        (figures.non_finite_step, worker.spec.index, worker)
        for worker, figures in reports
        if figures.round == newest and figures.non_finite_step is not None
    ]
    first = data_of(before)
    if not found:
        return None if newest > (first.round or 0) else before
    step, _, worker = min(found, key=lambda each: each[:2])
    if first.round == newest and first.step is not None and first.step <= step:
        return before
    message = (
        f"NaN or infinite loss at step {step} of round {newest}, the first, in "
        f"{worker.metadata.name}{_rank(job, workers, worker, newest)}; training goes on"
    )
    return WarningState(message, data=ConditionData(worker=worker.metadata.name, round=newest, step=step))


def _rank(job: ElasticJob, workers: Sequence[ElasticWorker], worker: ElasticWorker, round_: int) -> str:
    world = job.status.world
    if world.round != round_ or worker.spec.index not in world.members:
        return ""
    ranks = ranks_of(workers, world.members)[worker.spec.index]
    return f" rank {ranks.start}" if len(ranks) == 1 else f" (one of the ranks {as_ranges(list(ranks))})"


def checkpoints_failing(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge the processes' reports about their checkpoints.

    The message stays while the same worker has the same trouble, whatever its newest step is. It is withdrawn
    when that worker no longer reports it, is gone, or stands by while others make steps. It stays while the
    worker's Pod is replaced.
    """
    workers = look.workers
    reports = ((worker.metadata.name, worker.status.agent) for worker in workers.reporting_steps)
    reporting = {name: report.checkpoint_trouble for name, report in reports if report is not None}
    troubled = {name: trouble for name, trouble in reporting.items() if trouble is not None}
    reporter = data_of(before).worker
    if not troubled:
        if reporter is None or reporter in reporting:
            return None
        who = next((worker for worker in workers if worker.metadata.name == reporter), None)
        if who is None or _stands_by(who, look.world, workers):
            return None
        return before
    name = reporter if reporter in troubled else next(iter(troubled))
    trouble = troubled[name]
    if before is not None and before.reason == trouble.reason and reporter == name:
        return before
    others = and_more(len(troubled) - 1, "worker")
    message = f"{name}, first: {trouble.message}{others}"
    return WarningState(message, trouble.reason, ConditionData(worker=name))


def process_lingers(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge processes that do not exit after the end of their scripts, or were ended for that."""
    reports = ((worker.metadata.name, worker.status.agent) for worker in look.workers.training)
    found = [(name, report.lingers) for name, report in reports if report is not None and report.lingers]
    if not found:
        return None
    (name, what), more = found[0], and_more(len(found) - 1, "worker")
    limit = look.job.spec.elastic_policy.hang_timeout_seconds
    return WarningState(
        f"{name} {what}{more}. A process is ended {limit:g} s after its script, "
        "10 s after one that failed: end what it waits for in the script, or make the thread a daemon",
        data=ConditionData(worker=name),
    )


def _stands_by(worker: ElasticWorker, world: Rendezvous, workers: Workers) -> bool:
    """Whether it is not in the formed world, whose members have made steps."""
    if world.phase is not RendezvousPhase.FORMED or worker.spec.index in world.members:
        return False
    reports = (other.status.agent for other in workers.reporting_steps)
    return any(report.rounds[-1].round == world.round for report in reports if report is not None)


def agents_silent(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge which agents are silent though their nodes are not lost (`reconcilers/observed/silence.py`)."""
    job, workers = look.job, look.workers
    silent = {w.metadata.name: at for w in workers.exceptional if (at := silent_since(w)) is not None}
    if not silent:
        return None
    since = min(silent.values()) - timedelta(seconds=job.spec.elastic_policy.heartbeat_timeout_seconds)
    return WarningState(
        f"no heartbeat from {len(silent)} of {counted(len(workers), 'worker')} since "
        f"{since:%Y-%m-%dT%H:%M:%SZ} ({some_of(list(silent), MOST_NAMED)}), though nothing shows that their "
        "nodes are lost: training goes on and no Pod is deleted, but their failures are noticed late; find "
        "out what keeps these Pods from the API server (NetworkPolicy, ServiceAccount, throttling, webhook, "
        "DNS), and delete a Pod whose training has stopped, too"
    )


def agents_unheard(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge which Pods have run for long without a report of their agents; Pods of roles need none.

    The warning stays when the time starts over, as after an outage of the API server.
    """
    if look.job.status.cluster is not None:
        return None
    ages = look.seen.unheard_seconds
    unheard = {w.metadata.name: w for w in look.workers.exceptional if w.metadata.uid in ages}
    late = (name for name, worker in unheard.items() if ages[worker.metadata.uid] >= UNHEARD_SECONDS)
    found = {name: at for name in late if (at := unheard[name].status.history[-1].running_at) is not None}
    if not found:
        return before if data_of(before).worker in unheard else None
    since, has = min(found.values()), "has" if len(found) == 1 else "have"
    return WarningState(
        f"{counted(len(found), 'Pod')} {has} run since {since:%Y-%m-%dT%H:%M:%SZ} and no agent has reported "
        f"({some_of(list(found), MOST_NAMED)}), so no world has them: {why_unheard(look.job)}",
        data=ConditionData(worker=next(iter(found))),
    )


def why_unheard(job: ElasticJob) -> str:
    """Return what may keep the workers' agents from reporting, and what to do."""
    worker = job.spec.replica_specs.get(names.WORKER)
    if worker is not None:
        container = worker.template["spec"]["containers"][0]
        variables = plain_variables(worker, job.spec.envs, container)
        env = [{"name": name, "value": value} for name, value in variables.items()]
        setting = rendezvous_elsewhere({**container, "env": env})
        if setting:
            return f"the command's torchrun may leave dlr out by {setting}: remove that"
    return (
        "the command starts no torchrun, dlr run or dlr exec, or a torchrun with another rendezvous than "
        "dlr's (--standalone, --rdzv-backend), or the Pod cannot reach the API server (a NetworkPolicy, DNS, "
        "a proxy, KUBERNETES_SERVICE_HOST); see the Pod's log"
    )


def seconds_to_hear(unheard_seconds: Mapping[str, float]) -> float | None:
    """Return the time left for the agents that have not reported yet."""
    left = (UNHEARD_SECONDS - seconds for seconds in unheard_seconds.values())
    return min((seconds for seconds in left if seconds > 0), default=None)


def heartbeat_late(_: JobWarning | None, look: DesiredJob) -> JobWarning | None:
    """Judge which late agents a job that does not train may wait for, since when, and until when."""
    found = ((w, condition_of(w.status.conditions, HEARTBEAT_ON_TIME)) for w in look.workers.exceptional)
    late = [(worker, condition.last_transition_time) for worker, condition in found if condition is not None]
    if not late or any(map(silent_since, look.workers.exceptional)):  # AgentsSilent says more
        return None
    worker, since = min(late, key=lambda each: each[1])
    limit = float(look.job.spec.elastic_policy.heartbeat_timeout_seconds)
    node = worker.status.node_name
    others = and_more(len(late) - 1, "worker")
    where = f"{worker.metadata.name} on {node}" if node else worker.metadata.name
    message = f"no heartbeat from {where}, which is lost after {limit:.0f} s of silence{others}"
    data = ConditionData(worker=worker.metadata.name, node=node, count=len(late), limit_seconds=limit)
    return JobWarning(type=HEARTBEAT_LATE, message=message, since=since, data=data)


def ranks_behind(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge how many workers of the world are far behind the others."""
    world = look.world
    if world.phase is not RendezvousPhase.FORMED:
        return None
    members, found = set(world.members), []
    for worker in look.workers.reporting_steps:
        report = current_report(worker)
        if report is None or report.progress is None or worker.spec.index not in members:
            continue
        if report.rounds[-1].round == world.round:
            found.append(
                WorkerPace(worker.metadata.name, report.progress.step, report.progress.seconds_per_step)
            )
    behind = far_behind(found, look.job.spec.elastic_policy.heartbeat_timeout_seconds)
    if not behind:
        return None
    if before is not None and data_of(before).count == len(behind):
        return before
    message = behind_line(behind, len(members))
    return WarningState(message, data=ConditionData(worker=behind[0].worker, count=len(behind)))


def sidecars_failed(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the sidecars that failed by themselves, whatever training does."""
    failing = [
        (worker.metadata.name, found.message)
        for worker in look.workers.exceptional
        if (found := condition_of(worker.status.conditions, SIDECARS_WELL)) is not None
    ]
    if not failing:
        return None
    (name, why), others = failing[0], len(failing) - 1
    more = f", and {counted(others, 'more worker')}" if others else ""
    return WarningState(f"{why} ({name}{more})")


def nodes_reported(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge the faults that agents and kubelets report of the workers' nodes."""
    found = reports_on(look.workers)
    if not found:
        return None
    first, more = found[0], and_more(len(found) - 1, "worker")
    name, number = first.worker.metadata.name, len(look.workers.training)
    data = ConditionData(worker=name, node=first.node, count=len(found))
    if are_doubted(found, look.workers):
        return WarningState(
            f"faults are reported of the nodes of {len(found)} of {counted(number, 'worker')} at once. So "
            "many are doubted, and no worker moves: check the reporters, and cordon the nodes if they are "
            f"right; {name}, first: {first.message}",
            reason="Doubted",
            data=data,
        )
    return WarningState(f"{name} leaves its node, as {first.message}{more}", reason="Leaving", data=data)


def seconds_to_look(job: ElasticJob) -> float | None:
    """Return the time until the next reconcile for facts that trigger none."""
    world = job.status.world
    if world.phase is not RendezvousPhase.FORMED or len(world.members) < 2:
        return None
    is_behind = warning_of(job.status.warnings, RANKS_BEHIND) is not None
    return BEHIND_LOOK_AGAIN_SECONDS if is_behind else BEHIND_LOOK_SECONDS
