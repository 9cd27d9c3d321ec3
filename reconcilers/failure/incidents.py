"""Worlds that broke because training processes failed in place: who was first, and of what class.

One death makes many: the others' collectives break, and each agent reports what it saw, in any order, some of
them late. How likely each was first is its `Guilt`. A late report can take the blame over, until there is a
newer failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controller.wording import first_line
from crds import names
from crds.agent_report import AgentFailure, AgentState, FailureCause
from crds.elasticworker import ElasticWorker, ExitClass
from crds.failure_policy import FailureAction, FailureRule
from crds.failure_texts import early_finish_text
from crds.job_status import MAX_FAILURE, JobFailure
from crds.ranges import as_ranges
from crds.texts import ending
from reconcilers.failure.facts import Break
from reconcilers.failure.meaning import Guilt, meaning_of
from reconcilers.failure.rules import action_for, of_process
from reconcilers.observed.containers import exit_words
from reconcilers.observed.ending import is_well
from reconcilers.observed.exit_class import classify_process
from reconcilers.observed.worker_state import current_report

MAX_LINE = 300


@dataclass(frozen=True)
class Incident:
    """One failure in place."""

    exit_class: ExitClass
    failure: JobFailure
    """Its time is its agent's until it is recorded (`at`)."""
    guilt: Guilt
    report: AgentFailure | None = None
    """The agent's report of the failure; None once its Pod is gone."""
    action: FailureAction | None = None
    """The action of the rule that matched."""
    company: int = 1
    """Number of members that wait at the same place, if this one waits for others."""
    instead_of: JobFailure | None = None
    """Which one was blamed before."""

    @property
    def follows(self) -> bool:
        """Whether all that shows is that it follows from a peer's."""
        return self.exit_class is ExitClass.UNKNOWN

    def at(self, now: datetime) -> Incident:
        """The same as it is recorded: by our own clock, as the ends of Pods that it is compared with."""
        return replace(self, failure=self.failure.model_copy(update={"time": now}))

    def answered(self, rules: Sequence[FailureRule]) -> Incident:
        """Return the incident with the action of the first rule that matches."""
        if self.report is None:
            return self
        return replace(self, action=action_for(rules, of_process(self.report)))


def incident_of(
    breaks: Sequence[Break],
    workers: Sequence[ElasticWorker],
    round_: int,
    rules: Sequence[FailureRule] = (),
    members: Sequence[int] = (),
) -> Incident | None:
    """The one to blame for the end of this round's world; None if no process failed in it.

    Args:
        members: the round's, in rank order: who finished early is then known by rank.
    """
    if not any(b.report is not None for b in breaks):
        return None
    return first_of(workers, round_, rules, members, lost=any(_is_loss(b) for b in breaks))


def first_of(
    workers: Sequence[ElasticWorker],
    round_: int,
    rules: Sequence[FailureRule],
    members: Sequence[int],
    *,
    lost: bool,
    unheard: Sequence[Incident] = (),
) -> Incident | None:
    """The most likely first of all who failed in this round, by their reports.

    Args:
        lost: a member's Pod is gone, which explains every rank that lost, left or waited for a peer.
        unheard: members without a report.
    """
    first = min([*suspects_of(workers, round_, members), *unheard], key=order, default=None)
    if first is None or (lost and first.guilt >= Guilt.FINISHED_EARLY):
        return None
    return first.answered(rules)


def late_incident(
    blamed: JobFailure | None,
    workers: Sequence[ElasticWorker],
    rules: Sequence[FailureRule] = (),
    members: Sequence[int] = (),
    *,
    blames_waiting: bool = True,
) -> Incident | None:
    """Return the worker more to blame than the one that is blamed by now; None without one.

    Args:
        blames_waiting: a rank that waited for others may take the blame from one that lost a peer. False once
            a member's Pod is gone or the next world is formed: it waited for the peer that ended.
    """
    if blamed is None or blamed.round is None:
        return None
    suspects = suspects_of(workers, blamed.round, members)
    timed_out = any(s.guilt is Guilt.TIMED_OUT for s in suspects)
    if blamed.exit_class == ExitClass.UNKNOWN and (timed_out or not blames_waiting):
        suspects = [s for s in suspects if s.guilt not in (Guilt.SILENT, Guilt.WAITS)]
    if blamed.unanswered and any(s.failure.worker == blamed.worker for s in suspects):
        return replace(min(suspects, key=order).answered(rules), instead_of=blamed)
    known = next((s for s in suspects if _same(s.failure, blamed)), _as_known(blamed))
    first = min([known, *(s for s in suspects if not _same(s.failure, blamed))], key=order)
    if first is known:
        return None
    return replace(first.answered(rules), instead_of=blamed)


def with_incident(restarts: Mapping[str, int], incident: Incident | None) -> dict[str, int]:
    """The job's restarts by class, with this one counted, instead of the one whose blame it took over."""
    counted = dict(restarts)
    if incident is None:
        return counted
    if incident.instead_of is not None:
        counted = uncounted(counted, incident.instead_of.exit_class)
    counted[incident.exit_class.value] = counted.get(incident.exit_class.value, 0) + 1
    return counted


def uncounted(restarts: Mapping[str, int], exit_class: str) -> dict[str, int]:
    """Return the counts with one less of this class."""
    counted = {name: count - (name == exit_class) for name, count in restarts.items()}
    return {name: count for name, count in counted.items() if count > 0}


def in_one_line(failure: JobFailure) -> str:
    """Such as `digits-worker-2 rank 2: ValueError: bad`, with the switch before it that is to blame."""
    rank = "" if failure.rank is None else f" rank {failure.rank}"
    first = first_line(failure.message) or failure.exit_class
    return f"{switch_words(failure.domain)}{failure.worker}{rank}: {first[:MAX_LINE]}"


def switch_words(domain: str | None) -> str:
    """What goes before the first to fail where most of its domain failed alike; empty without a domain."""
    return f"the switch of domain {domain}, whose workers failed alike, first " if domain else ""


def culprit_of(blamed: JobFailure | None, workers: Collection[ElasticWorker]) -> ElasticWorker | None:
    """The worker that failed in place and is blamed for it, if it still has the Pod in which it did."""
    for worker in workers:
        if blamed is None or blamed.round is None or worker.metadata.name != blamed.worker:
            continue
        failure = _failure_in(worker, blamed.round)
        if failure is not None and failure.rank == blamed.rank:
            return worker
    return None


def incident_in(worker: ElasticWorker, round_: int, rules: Sequence[FailureRule]) -> Incident | None:
    """What this worker, in the Pod that it has, says of its failure in this round."""
    return next((found.answered(rules) for found in suspects_of([worker], round_, ())), None)


def ranks_of(workers: Sequence[ElasticWorker], members: Sequence[int]) -> dict[int, range]:
    """The global ranks of each member's processes, by index."""
    agents = {w.spec.index: w.status.agent for w in workers if w.spec.type == names.WORKER}
    sizes = {index: agent.local_world_size for index, agent in agents.items() if agent is not None}
    ranks, first = {}, 0
    for index in members:
        ranks[index] = range(first, first + sizes.get(index, 1))
        first = ranks[index].stop
    return ranks


def step_in(worker: ElasticWorker, round_: int) -> int | None:
    """The highest step that the worker has reported of this round."""
    report = worker.status.agent
    rounds = report.rounds if report is not None else ()
    return next((figures.last_step for figures in rounds if figures.round == round_), None)


def suspects_of(workers: Sequence[ElasticWorker], round_: int, members: Sequence[int]) -> list[Incident]:
    """Return what the workers report of failures in this round, in any order."""
    reports = ((worker.metadata.name, _failure_in(worker, round_)) for worker in workers)
    failed = [(name, failure) for name, failure in reports if failure is not None and not is_well(failure)]
    found = [_incident(name, failure) for name, failure in failed]
    if not found:
        return []
    early = [worker for worker in workers if _has_finished(worker, round_)]
    ranks = ranks_of(workers, members) if early else {}
    found += [_early(worker, round_, ranks.get(worker.spec.index)) for worker in early]
    waiting = Counter(place_of(s.report) for s in found if s.guilt is Guilt.WAITS)
    return [replace(s, company=waiting[place_of(s.report)]) if s.guilt is Guilt.WAITS else s for s in found]


def _failure_in(worker: ElasticWorker, round_: int) -> AgentFailure | None:
    report = current_report(worker)
    if worker.spec.type != names.WORKER or report is None:
        return None
    return report.failure if report.failure is not None and report.failure.round == round_ else None


def _has_finished(worker: ElasticWorker, round_: int) -> bool:
    report = current_report(worker)
    if worker.spec.type != names.WORKER or report is None:
        return False
    return report.state is AgentState.SUCCEEDED and report.observed_round == round_


def _incident(worker: str, failure: AgentFailure) -> Incident:
    exit_class = classify_process(failure)
    text = failure.message or _end_of(failure.log_tail) or exit_words(failure.exit_code)
    return Incident(
        exit_class=exit_class,
        failure=JobFailure(
            worker=worker,
            rank=failure.rank,
            exit_class=exit_class.value,
            exit_code=failure.exit_code,
            message=text,
            round=failure.round,
            step=failure.step,
            after_seconds=failure.after_seconds,
            time=failure.time,
        ),
        guilt=_guilt(exit_class, failure),
        report=failure,
    )


def _early(worker: ElasticWorker, round_: int, ranks: range | None) -> Incident:
    """Return the incident of a worker all of whose processes ended well."""
    report = worker.status.agent
    assert report is not None
    step = step_in(worker, round_)
    who = worker.metadata.name
    if ranks:
        who = f"{'rank' if len(ranks) == 1 else 'ranks'} {as_ranges(ranks)}"
    return Incident(
        exit_class=ExitClass.USER_ERROR,
        failure=JobFailure(
            worker=worker.metadata.name,
            rank=ranks.start if ranks else None,
            exit_class=ExitClass.USER_ERROR.value,
            exit_code=0,
            message=early_finish_text(who, step),
            round=round_,
            step=step,
            time=report.since,
        ),
        guilt=Guilt.FINISHED_EARLY,
    )


def _guilt(exit_class: ExitClass, failure: AgentFailure) -> Guilt:
    if failure.cause is FailureCause.DEVICE:
        return Guilt.DEVICE
    if exit_class is ExitClass.UNKNOWN:
        return Guilt.TIMED_OUT if failure.cause is FailureCause.TIMED_OUT else Guilt.FOLLOWS
    if exit_class is not ExitClass.HANG:
        return Guilt.FINISHED_EARLY if failure.exit_code == 0 else Guilt.OWN
    stack = next((s for s in failure.stacks if s.rank == failure.rank), None)
    if stack is None:
        return Guilt.HANGS
    if not stack.offered:
        return Guilt.SILENT
    return Guilt.WAITS if stack.in_collective else Guilt.HANGS


def place_of(failure: AgentFailure | None) -> str:
    """Describe the place of the blamed process in full."""
    stacks = failure.stacks if failure is not None else ()
    return next((s.frames for s in stacks if failure is not None and s.rank == failure.rank), "")


def _end_of(log: str) -> str:
    """Its last lines, as far as there is room for them."""
    end = ending(log, MAX_FAILURE)
    return end if end == log else end.partition("\n")[2] or end


def _as_known(blamed: JobFailure) -> Incident:
    """Return the incident of a failure whose report has gone with its Pod."""
    exit_class = ExitClass(blamed.exit_class)
    is_hang = exit_class is ExitClass.HANG
    guilt = _guilt_of_hang(blamed) if is_hang else meaning_of(exit_class).guilt
    early = guilt is Guilt.OWN and blamed.exit_code == 0
    return Incident(exit_class, blamed, Guilt.FINISHED_EARLY if early else guilt)


def _guilt_of_hang(blamed: JobFailure) -> Guilt:
    if blamed.unanswered:
        return Guilt.SILENT
    return meaning_of(blamed.exit_class).guilt if blamed.exit_code is None else Guilt.TIMED_OUT


def order(incident: Incident) -> tuple[Guilt, int, int, float, str, int]:
    """Order incidents by guilt, and equals by who is behind the others; of those that wait, the smallest
    company comes first; then the one that failed soonest after the start of its processes. Clocks of nodes
    differ, and do not count."""
    step = incident.failure.step
    compares = incident.guilt in (Guilt.HANGS, Guilt.FINISHED_EARLY, Guilt.SILENT, Guilt.WAITS)
    behind = -1 if step is None or not compares else step
    failure = incident.failure
    after = math.inf if failure.after_seconds is None else failure.after_seconds
    rank = -1 if failure.rank is None else failure.rank
    return incident.guilt, behind, incident.company, after, failure.worker, rank


def _same(one: JobFailure, other: JobFailure) -> bool:
    """A process may fail a moment before the driver reports why: then its worker reports another class."""
    who = (other.worker, other.rank, other.round, other.exit_class)
    return (one.worker, one.rank, one.round, one.exit_class) == who


def _is_loss(found: Break) -> bool:
    """Whether the member's Pod is gone, rather than its processes."""
    return found.report is None and not found.departed
