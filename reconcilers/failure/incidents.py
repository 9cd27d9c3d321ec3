"""Worlds that broke because training processes failed in place: who was first, and of what class.

One death makes many: the others' collectives break, and each agent tells what it saw, in any order, some of
them late. So a failure that is no mere consequence of a peer's comes first; of these a device's fault, then
one that is no hang; of hangs, the rank that is behind the others, and one that was not waiting for them; then
the earliest. Whoever tells late can take the blame over, until there is a newer failure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controller.wording import first_line
from crds import names
from crds.elasticjob import MAX_FAILURE, FailureAction, FailureRule, JobFailure
from crds.elasticworker import AgentFailure, ElasticWorker, ExitClass, FailureCause
from reconcilers.failure.exit_class import classify_process
from reconcilers.failure.rules import action_for, of_process
from reconcilers.pod.worker_status import current_report
from reconcilers.world.rendezvous import Break

MAX_LINE = 300


@dataclass(frozen=True)
class Incident:
    """One failure in place."""

    exit_class: ExitClass
    failure: JobFailure
    told: AgentFailure | None = None
    """In its agent's words, if they are still there."""
    action: FailureAction | None = None
    """Of the rule that matched."""
    in_collective: bool = False
    """Of a hang: it was waiting for others."""
    of_device: bool = False
    """A device's driver told of it: what processes say of the same moment follows from that."""
    instead_of: JobFailure | None = None
    """Which one was blamed before."""

    @property
    def follows(self) -> bool:
        """Whether it is only known to follow from a peer's."""
        return self.exit_class is ExitClass.UNKNOWN

    def answered(self, rules: Sequence[FailureRule]) -> Incident:
        """With what the first rule that matches says to it."""
        return self if self.told is None else replace(self, action=action_for(rules, of_process(self.told)))


def incident_of(
    breaks: Sequence[Break],
    workers: Sequence[ElasticWorker],
    round_: int,
    rules: Sequence[FailureRule] = (),
) -> Incident | None:
    """The one to blame for the end of this round's world; None if no process failed in it.

    Where a member was lost with its Pod, that of the others is a consequence.
    """
    if not any(b.report is not None for b in breaks):
        return None
    first = min(_suspects(workers, round_), key=_order, default=None)
    if first is None or (first.follows and any(_is_loss(b) for b in breaks)):
        return None
    return first.answered(rules)


def late_incident(
    blamed: JobFailure | None, workers: Sequence[ElasticWorker], rules: Sequence[FailureRule] = ()
) -> Incident | None:
    """Who was rather to blame than the one who is blamed by now; None if nobody."""
    if blamed is None or blamed.round is None:
        return None
    suspects = _suspects(workers, blamed.round)
    known = next((s for s in suspects if _same(s.failure, blamed)), _as_known(blamed))
    first = min([known, *(s for s in suspects if not _same(s.failure, blamed))], key=_order)
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
    """With one less of this class."""
    counted = {name: count - (name == exit_class) for name, count in restarts.items()}
    return {name: count for name, count in counted.items() if count > 0}


def in_one_line(failure: JobFailure) -> str:
    """Such as `digits-worker-2 rank 2: ValueError: bad`."""
    rank = "" if failure.rank is None else f" rank {failure.rank}"
    first = first_line(failure.message) or failure.exit_class
    return f"{failure.worker}{rank}: {first[:MAX_LINE]}"


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
    return next((found.answered(rules) for found in _suspects([worker], round_)), None)


def _suspects(workers: Sequence[ElasticWorker], round_: int) -> list[Incident]:
    found = ((worker.metadata.name, _failure_in(worker, round_)) for worker in workers)
    return [_incident(name, failure) for name, failure in found if failure is not None]


def _failure_in(worker: ElasticWorker, round_: int) -> AgentFailure | None:
    report = worker.status.agent
    if worker.spec.type != names.WORKER or report is None or not current_report(worker):
        return None
    return report.failure if report.failure is not None and report.failure.round == round_ else None


def _incident(worker: str, failure: AgentFailure) -> Incident:
    exit_class = classify_process(failure)
    text = failure.message or _end_of(failure.log_tail) or f"exit code {failure.exit_code}"
    stack = next((s for s in failure.stacks if s.rank == failure.rank), None)
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
            time=failure.time,
        ),
        told=failure,
        in_collective=stack is not None and stack.in_collective,
        of_device=failure.cause is FailureCause.DEVICE,
    )


def _end_of(log: str) -> str:
    """Its last lines, as far as there is room for them."""
    if len(log) <= MAX_FAILURE:
        return log
    end = log[-MAX_FAILURE:]
    return end.partition("\n")[2] or end


def _as_known(blamed: JobFailure) -> Incident:
    """Of a failure whose report has gone with its Pod."""
    exit_class = ExitClass(blamed.exit_class)
    return Incident(exit_class, blamed, of_device=exit_class is ExitClass.HARDWARE_ERROR)


def _order(incident: Incident) -> tuple[bool, bool, bool, int, bool, datetime]:
    hangs = incident.exit_class is ExitClass.HANG
    step = incident.failure.step
    behind = -1 if step is None or not hangs else step
    waits = hangs and incident.in_collective
    return incident.follows, not incident.of_device, hangs, behind, waits, incident.failure.time


def _same(one: JobFailure, other: JobFailure) -> bool:
    """A process may fail a moment before the driver tells why: then its worker tells of another class."""
    who = (other.worker, other.rank, other.round, other.exit_class)
    return (one.worker, one.rank, one.round, one.exit_class) == who


def _is_loss(found: Break) -> bool:
    """Whether the member's Pod is gone, rather than its processes."""
    return found.report is None and not found.departed
