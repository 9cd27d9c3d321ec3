"""Judges a hang, once all members of its world have reported where their processes are.

The first agent that reports a hang only sees its own processes, which mostly wait for others, and so does
every collective that times out. So the world ends with `hangSince`, which asks all members for their stacks.
Neither the next world nor the end of the job comes before they have answered, or ANSWER_SECONDS are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.wording import first_line, some_of
from crds import names
from crds.agent_report import AgentReport, AgentState, FailureCause
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.failure_policy import FailureRule
from crds.job_status import MAX_FAILURE, ElasticJobStatus, JobFailure
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.failure.facts import Break
from reconcilers.failure.incidents import (
    Incident,
    first_of,
    in_one_line,
    order,
    ranks_of,
    step_in,
    suspects_of,
)
from reconcilers.failure.meaning import Guilt
from reconcilers.observed.ending import is_well
from reconcilers.observed.worker_state import current_report

ANSWER_SECONDS = 10.0
"""A process takes 3 s at most to write its stacks; the rest is for watches and writes of a busy cluster."""
NAMED = 3
"""Most members named that did not answer; the others are counted."""

NO_RANK = "No rank was found that hangs by itself"
EACH_WAITS = (
    "each rank waits for another: do all call the same collectives? If they do, test the nodes: "
    "a link may be at fault"
)


@dataclass(frozen=True)
class Inquiry:
    """A hang that is not judged yet."""

    since: datetime
    unheard: tuple[ElasticWorker, ...]
    """Members that have not answered, though their Pods exist."""
    lost: bool
    """Whether a member's Pod is gone."""

    @property
    def until(self) -> datetime:
        return self.since + timedelta(seconds=ANSWER_SECONDS)


def inquiry_of(
    status: ElasticJobStatus,
    breaks: Sequence[Break],
    workers: Sequence[ElasticWorker],
    now: datetime,
    *,
    is_asked: bool = True,
) -> Inquiry | None:
    """Return the hang to judge; None without one.

    Args:
        is_asked: whether the ElasticWorld asks the members already; if not, their time begins now.
    """
    published, blamed = status.world, status.last_failure
    follows = blamed is not None and blamed.exit_class == ExitClass.UNKNOWN
    if published.phase is RendezvousPhase.REFORMING and published.hang_since is not None:
        since = published.hang_since if is_asked else now
        return _inquiry(published, workers, since)
    if any(_hangs(found.report, published.round) for found in breaks):
        return _inquiry(published, workers, now)
    if published.phase is RendezvousPhase.REFORMING and follows and was_counted(status):
        # The reported failures may follow from a hang. Agents report their state at the break unasked, so
        # they have ANSWER_SECONDS from the break on.
        late = _inquiry(published, workers, published.reforming_since or now)
        hangs = any(_hangs(worker.status.agent, published.round) for worker in workers)
        return late if hangs and not late.lost else None
    return None


def was_counted(status: ElasticJobStatus) -> bool:
    """Whether a failure of the published round is blamed already."""
    published, blamed = status.rendezvous, status.last_failure
    return published is not None and blamed is not None and blamed.round == published.round


def is_open(inquiry: Inquiry, published: Rendezvous, workers: Sequence[ElasticWorker], now: datetime) -> bool:
    """Whether to wait for more answers; not once a process failed by itself."""
    if not inquiry.unheard or now >= inquiry.until:
        return False
    heard = first_of(workers, published.round, (), published.members, lost=False)
    return heard is None or heard.guilt >= Guilt.HANGS


def culprit_of_hang(
    inquiry: Inquiry,
    published: Rendezvous,
    workers: Sequence[ElasticWorker],
    rules: Sequence[FailureRule],
    now: datetime,
) -> Incident | None:
    """Return the incident to blame, once there is no answer to wait for.

    If a collective has timed out, no silent member is to blame: its node may be dead, which is noticed later.
    If all have answered, and each waits for another, the program hangs.
    """
    silent = _silent_members(inquiry, published, workers) if now >= inquiry.until else []
    found = suspects_of(workers, published.round, published.members)
    timed_out = [each for each in found if each.guilt is Guilt.TIMED_OUT]
    unheard = () if timed_out else silent
    first = first_of(workers, published.round, rules, published.members, lost=inquiry.lost, unheard=unheard)
    if first is None or not timed_out:
        return _with_silent(_with_nobody(first, found, published), silent)
    if silent and first.guilt > Guilt.HANGS:
        return min(timed_out, key=order).answered(rules)
    if first.guilt is Guilt.TIMED_OUT:
        return _as_hang(first, workers)
    waited = f"It was waited for: {in_one_line(min(timed_out, key=order).failure)}"
    return _with_silent(_with_line(first, waited) if first.exit_class is ExitClass.HANG else first, silent)


def _with_nobody(first: Incident | None, found: Sequence[Incident], published: Rendezvous) -> Incident | None:
    """Return the incident; if all members wait at one place and step, with the line that none is to blame."""
    if first is None or first.guilt is not Guilt.WAITS or not 1 < len(published.members) == first.company:
        return first
    is_behind = any(each.failure.step != first.failure.step for each in found)
    return first if is_behind else _with_line(first, f"{NO_RANK}; {EACH_WAITS}")


def _as_hang(incident: Incident, workers: Sequence[ElasticWorker]) -> Incident:
    """Return the time-out of a collective as a hang, with the reports of members that are well."""
    reports = ((worker.metadata.name, current_report(worker)) for worker in workers)
    well = [
        f"{name} {first_line(report.failure.message)}"
        for name, report in reports
        if report is not None
        and report.failure is not None
        and report.failure.round == incident.failure.round
        and is_well(report.failure)
    ]
    why = some_of(well, NAMED) if well else EACH_WAITS
    hang = {"exit_class": ExitClass.HANG.value}
    as_hang = replace(incident, exit_class=ExitClass.HANG, failure=incident.failure.model_copy(update=hang))
    return _with_line(as_hang, f"{NO_RANK}; {why}")


def _silent_members(
    inquiry: Inquiry, published: Rendezvous, workers: Sequence[ElasticWorker]
) -> list[Incident]:
    """Return the members that did not answer in time, as incidents."""
    if not inquiry.unheard:
        return []
    heard = first_of(workers, published.round, (), published.members, lost=False)
    ranks = ranks_of(workers, published.members)
    others = f"; of the others, {in_one_line(heard.failure)}" if heard is not None else ""
    nor = f", nor did {len(inquiry.unheard) - 1} more" if len(inquiry.unheard) > 1 else ""
    found = []
    for worker in inquiry.unheard:
        own, step = ranks[worker.spec.index], step_in(worker, published.round)
        after = "before its first step" if step is None else f"after step {step}"
        silence = f"its agent did not report for {ANSWER_SECONDS:.0f} s{nor}"
        text = f"never answered where it hangs, {after}: {silence}"
        failure = JobFailure(
            worker=worker.metadata.name,
            rank=own.start if len(own) == 1 else None,
            exit_class=ExitClass.HANG.value,
            message=first_line(f"{text}{others}"),
            round=published.round,
            step=step,
            time=inquiry.since,
            unanswered=True,
        )
        found.append(Incident(ExitClass.HANG, failure, Guilt.SILENT))
    return found


def _with_silent(incident: Incident | None, silent: Sequence[Incident]) -> Incident | None:
    """Return the incident, with the members that did not answer after the first line of its message."""
    silent_names = [each.failure.worker for each in silent]
    if incident is None or not silent or incident.failure.worker in silent_names:
        return incident
    return _with_line(incident, f"{some_of(silent_names, NAMED)} never answered where it hangs.")


def _with_line(incident: Incident, line: str) -> Incident:
    """Return the incident with a line after the first one of its message."""
    first, _, rest = incident.failure.message.partition("\n")
    message = f"{first}\n{line}\n{rest}"
    return replace(
        incident, failure=incident.failure.model_copy(update={"message": shortened(message, MAX_FAILURE)})
    )


def _inquiry(published: Rendezvous, workers: Sequence[ElasticWorker], since: datetime) -> Inquiry:
    by_index = {worker.spec.index: worker for worker in workers if worker.spec.type == names.WORKER}
    unheard, lost = [], False
    for index, incarnation in zip(published.members, published.incarnations, strict=True):
        worker = by_index.get(index)
        if worker is None or _is_lost(worker, incarnation):
            lost = True
        elif not _has_answered(worker, published.round):
            unheard.append(worker)
    return Inquiry(since, tuple(unheard), lost)


def _hangs(report: AgentReport | None, round_: int) -> bool:
    failure = report.failure if report is not None else None
    if failure is None or failure.round != round_ or is_well(failure):
        return False
    return failure.cause in (FailureCause.HANG, FailureCause.TIMED_OUT)


def _is_lost(worker: ElasticWorker, incarnation: int) -> bool:
    return worker.spec.incarnation != incarnation or worker.status.phase is WorkerPhase.FAILED


def _has_answered(worker: ElasticWorker, round_: int) -> bool:
    """Whether it has reported a failure of this round, or left the round without one."""
    if worker.status.phase is WorkerPhase.SUCCEEDED:
        return True
    report = current_report(worker)
    if report is None:
        return False
    failed = report.failure is not None and report.failure.round == round_
    left = report.observed_round == round_ and report.state is not AgentState.RUNNING
    return failed or left or report.observed_round > round_
