"""Finds the first of the failures in place that broke a world, with its exit class.

One failure causes others: the peers' collectives break, and the agents report in any order, some of them
late. `Guilt` says how likely each failure was the first. A late report can take over the blame, until there
is a newer failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """The failure, with its agent's time until it is recorded."""
    guilt: Guilt
    report: AgentFailure | None = None
    """The agent's report of the failure; None once its Pod is gone."""
    action: FailureAction | None = None
    """The action of the rule that matched."""
    company: int = 1
    """Number of members that wait at the same place, if this one waits for others."""
    instead_of: JobFailure | None = None
    """The failure that was blamed before."""

    @property
    def follows(self) -> bool:
        """Whether it is only a consequence of a peer's failure."""
        return self.exit_class is ExitClass.UNKNOWN

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
    """Return the incident to blame for the end of this round's world; None if no process failed in it.

    Args:
        members: the round's members in rank order, by which early finishers are named with their ranks.
    """
    if not any(b.report is not None for b in breaks):
        return None
    return first_of(
        workers, round_, rules, members, lost=any(b.report is None and not b.departed for b in breaks)
    )


def first_of(
    workers: Sequence[ElasticWorker],
    round_: int,
    rules: Sequence[FailureRule],
    members: Sequence[int],
    *,
    lost: bool,
    unheard: Sequence[Incident] = (),
) -> Incident | None:
    """Return the most likely first of the failures that workers report of this round.

    Args:
        lost: whether a member's Pod is gone, which explains every rank that lost, left or waited for a peer.
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
    """Return an incident that is more to blame than the recorded failure; None without one.

    Args:
        blames_waiting: whether a rank that waited for others may take over the blame from one that lost a
            peer. False once a member's Pod is gone or the next world is formed: it waited for that peer.
    """
    if blamed is None or blamed.round is None:
        return None
    suspects = suspects_of(workers, blamed.round, members)
    timed_out = any(s.guilt is Guilt.TIMED_OUT for s in suspects)
    if blamed.exit_class == ExitClass.UNKNOWN and (timed_out or not blames_waiting):
        suspects = [s for s in suspects if s.guilt not in (Guilt.SILENT, Guilt.WAITS)]
    if blamed.unanswered and any(s.failure.worker == blamed.worker for s in suspects):
        return replace(min(suspects, key=order).answered(rules), instead_of=blamed)
    recorded = next((s for s in suspects if _same(s.failure, blamed)), _as_recorded(blamed))
    first = min([recorded, *(s for s in suspects if not _same(s.failure, blamed))], key=order)
    if first is recorded:
        return None
    return replace(first.answered(rules), instead_of=blamed)


def with_incident(restarts: Mapping[str, int], incident: Incident | None) -> dict[str, int]:
    """Return the job's restarts by class with this incident, which replaces one that it took over from."""
    counted = dict(restarts)
    if incident is None:
        return counted
    if incident.instead_of is not None:
        counted = uncounted(counted, incident.instead_of.exit_class)
    counted[incident.exit_class.value] = counted.get(incident.exit_class.value, 0) + 1
    return counted


def uncounted(restarts: Mapping[str, int], exit_class: str) -> dict[str, int]:
    """Return the counts with one less in this class."""
    counted = {name: count - (name == exit_class) for name, count in restarts.items()}
    return {name: count for name, count in counted.items() if count > 0}


def in_one_line(failure: JobFailure) -> str:
    """Return a line such as `digits-worker-2 rank 2: ValueError: bad`, after a switch that is to blame."""
    rank = "" if failure.rank is None else f" rank {failure.rank}"
    first = first_line(failure.message) or failure.exit_class
    return f"{switch_words(failure.domain)}{failure.worker}{rank}: {first[:MAX_LINE]}"


def switch_words(domain: str | None) -> str:
    """Return the words about the switch before the first failure of its domain; empty without a domain."""
    return f"the switch of domain {domain}, whose workers failed alike, first " if domain else ""


def culprit_of(blamed: JobFailure | None, workers: Collection[ElasticWorker]) -> ElasticWorker | None:
    """Return the worker blamed for a failure in place, if it still has the Pod in which it failed."""
    for worker in workers:
        if blamed is None or blamed.round is None or worker.metadata.name != blamed.worker:
            continue
        failure = _failure_in(worker, blamed.round)
        if failure is not None and failure.rank == blamed.rank:
            return worker
    return None


def incident_in(worker: ElasticWorker, round_: int, rules: Sequence[FailureRule]) -> Incident | None:
    """Return the failure in this round that the worker's present Pod reports; None without one."""
    return next((found.answered(rules) for found in suspects_of([worker], round_, ())), None)


def ranks_of(workers: Sequence[ElasticWorker], members: Sequence[int]) -> dict[int, range]:
    """Return the global ranks of each member's processes, by index."""
    agents = {w.spec.index: w.status.agent for w in workers if w.spec.type == names.WORKER}
    sizes = {index: agent.local_world_size for index, agent in agents.items() if agent is not None}
    ranks, first = {}, 0
    for index in members:
        ranks[index] = range(first, first + sizes.get(index, 1))
        first = ranks[index].stop
    return ranks


def step_in(worker: ElasticWorker, round_: int) -> int | None:
    """Return the highest step that the worker has reported of this round."""
    report = worker.status.agent
    rounds = report.rounds if report is not None else ()
    return next((figures.last_step for figures in rounds if figures.round == round_), None)


def suspects_of(workers: Sequence[ElasticWorker], round_: int, members: Sequence[int]) -> list[Incident]:
    """Return the failures in this round that the workers report, in any order."""
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
    """Return the incident of a worker whose processes all ended well, too early."""
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
    """Return the stack frames of the blamed process; empty without any."""
    stacks = failure.stacks if failure is not None else ()
    return next((s.frames for s in stacks if failure is not None and s.rank == failure.rank), "")


def _end_of(log: str) -> str:
    """Return the last lines of a log, up to `MAX_FAILURE` characters."""
    end = ending(log, MAX_FAILURE)
    return end if end == log else end.partition("\n")[2] or end


def _as_recorded(blamed: JobFailure) -> Incident:
    """Return the incident of a failure whose report is gone with its Pod."""
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
    """Return the sort key of an incident: its guilt, then the lowest step, the smallest company of those that
    wait, and the shortest time from the start of its processes. Nodes' clocks differ, and do not count."""
    step = incident.failure.step
    compares = incident.guilt in (Guilt.HANGS, Guilt.FINISHED_EARLY, Guilt.SILENT, Guilt.WAITS)
    behind = -1 if step is None or not compares else step
    failure = incident.failure
    after = math.inf if failure.after_seconds is None else failure.after_seconds
    rank = -1 if failure.rank is None else failure.rank
    return incident.guilt, behind, incident.company, after, failure.worker, rank


def _same(one: JobFailure, other: JobFailure) -> bool:
    """Whether both are the same report. A process may fail just before the driver reports the cause, so that
    its worker reports another class afterwards, which is another failure."""
    who = (other.worker, other.rank, other.round, other.exit_class)
    return (one.worker, one.rank, one.round, one.exit_class) == who
