"""What a job's workers say of shard sets, and which of them live."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from crds.agent_report import ShardsReport
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.intervals import from_text
from reconcilers.shards.lease import Crew
from reconcilers.shards.sets import Voice, definition_of


def crew_of(workers: Iterable[ElasticWorker], going: Collection[str], members: int) -> Crew:
    """The workers as far as shard sets go.

    Args:
        going: the uids of those that nothing more is leased to, though their Pods have not ended.
        members: how many train together.
    """
    alive: dict[int, int] = {}
    voices: list[Voice] = []
    for worker in workers:
        if not _has_ended(worker) and worker.metadata.uid not in going:
            alive[worker.spec.index] = worker.spec.incarnation
        voices += voices_of(worker)
    return Crew(alive, voices, members)


def voice_of(index: int, incarnation: int, said: ShardsReport) -> Voice:
    """
    Raises:
        ValueError: what it says of its elements is no set.
    """
    return Voice(
        worker=index,
        incarnation=incarnation,
        definition=definition_of(said),
        lease=said.lease,
        rest=from_text(said.rest),
        failed=from_text(said.failed),
        reason=said.reason,
        wants=said.wants,
        leaves=said.leaves,
        restoration=said.restoration,
        undone=from_text(said.undone),
    )


def voices_of(worker: ElasticWorker) -> Iterator[Voice]:
    """Yields what the worker reports; the last report of an ended incarnation counts too."""
    report = worker.status.agent
    if report is None:
        return
    for said in report.shards or ():
        try:
            yield voice_of(worker.spec.index, report.incarnation, said)
        except ValueError:
            continue  # nothing is taken from a worker that says what makes no sense: its lease stays


def _has_ended(worker: ElasticWorker) -> bool:
    """A worker of a suspended job awaits its next Pod in the same incarnation, and that Pod knows nothing of
    the lease: what the Pod before has said must have been counted by then."""
    status, incarnation = worker.status, worker.spec.incarnation
    if status.observed_incarnation != incarnation:
        return False
    last = status.history[-1] if status.history else None
    is_gone = last is not None and last.incarnation == incarnation and last.ended_at is not None
    return is_gone or status.phase in (WorkerPhase.FAILED, WorkerPhase.SUCCEEDED)
