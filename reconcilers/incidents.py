"""Worlds that broke because training processes failed in place: who was first, and of what class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crds import names
from crds.elasticjob import JobFailure
from crds.elasticworker import ElasticWorker, ExitClass
from reconcilers.exit_class import classify_process
from reconcilers.rendezvous import Break

MAX_MESSAGE = 4_096


@dataclass(frozen=True)
class Incident:
    exit_class: ExitClass
    failure: JobFailure


def incident_of(breaks: Sequence[Break], workers: Sequence[ElasticWorker]) -> Incident | None:
    """The earliest process failure among these breaks. The others' collectives broke because of it."""
    failures = [
        (b.index, b.report.failure) for b in breaks if b.report is not None and b.report.failure is not None
    ]
    if not failures:
        return None
    index, failure = min(failures, key=lambda item: item[1].time)
    by_index = {w.spec.index: w.metadata.name for w in workers if w.spec.type == names.WORKER}
    exit_class = classify_process(failure)
    text = failure.message or failure.log_tail or f"exit code {failure.exit_code}"
    return Incident(
        exit_class=exit_class,
        failure=JobFailure(
            worker=by_index.get(index, f"worker {index}"),
            rank=failure.rank,
            exit_class=exit_class.value,
            exit_code=failure.exit_code,
            message=text[-MAX_MESSAGE:],
            time=failure.time,
        ),
    )


def with_incident(restarts: Mapping[str, int], incident: Incident | None) -> dict[str, int]:
    """The job's restarts by class, with this one counted."""
    counted = dict(restarts)
    if incident is not None:
        counted[incident.exit_class.value] = counted.get(incident.exit_class.value, 0) + 1
    return counted
