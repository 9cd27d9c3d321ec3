"""Moves workers off nodes whose agents or kubelet report a fault, before it ends their training. Pure.

If the world is allowed without them, it goes on without them by vote, and no step is lost; then each gets a
Pod on another node. Otherwise they get that Pod at once, as on a node that a check found faulty. If more than
half of a job's workers are on such nodes at once, the reports are doubted, and no worker moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from controller.resources import Object
from crds import names
from crds.elasticworker import ElasticWorker
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.hardware import reports_fault
from reconcilers.observed.worker_state import ENDED, HARDWARE_WELL, current_report
from reconcilers.observed.workers import Workers
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.vetting import Standing


@dataclass(frozen=True)
class Report:
    """A fault that is reported of a worker's node."""

    worker: ElasticWorker
    node: str
    message: str
    """A sentence with the device and the reporter."""


def reports_on(workers: Workers) -> list[Report]:
    """Return the reported faults, in rank order."""
    found = []
    for worker in workers.exceptional:
        status = worker.status
        fault = condition_of(status.conditions, HARDWARE_WELL)
        is_current = status.observed_incarnation == worker.spec.incarnation and status.phase not in ENDED
        if fault is not None and is_current and worker.spec.type == names.WORKER and status.node_name:
            found.append(Report(worker, status.node_name, fault.message))
    return found


def are_doubted(reports: Collection[Report], workers: Workers) -> bool:
    """Whether so many nodes are reported at once that the reports are probably wrong."""
    return len(reports) > max(1, len(workers.training) // 2)


def with_reported(
    standing: Standing, workers: Workers, published: Rendezvous, bounds: Bounds, nodes: Iterable[Object]
) -> Standing:
    """Return the standing, with the reported faults of the workers' nodes.

    Args:
        nodes: raw Nodes, which are read only if Pods keep off some.
    """
    reports = reports_on(workers)
    if are_doubted(reports, workers):
        return standing
    messages = {report.worker.spec.index: report.message for report in reports}
    leaving = _leaving(messages, workers, published, bounds)
    due = {index: message for index, message in messages.items() if index not in leaving}
    reported = dict.fromkeys(report.node for report in reports)
    kept_off = {node for worker in workers.exceptional for node in worker.spec.reported_nodes}
    if others := kept_off.difference(reported):
        still = (node for node in nodes if node["metadata"]["name"] in others and reports_fault(node))
        reported |= dict.fromkeys(node["metadata"]["name"] for node in still)
    return replace(
        standing,
        faulty={**due, **standing.faulty},
        leaving={index: messages[index] for index in sorted(leaving)},
        reported_nodes=tuple(reported),
    )


def marked(participants: Sequence[Participant], standing: Standing) -> Sequence[Participant]:
    """Return the participants, with those marked that have to leave the world first."""
    if not standing.leaving:
        return participants
    return [
        replace(p, leaving=standing.leaving[p.index]) if p.index in standing.leaving else p
        for p in participants
    ]


def _leaving(reported: Collection[int], workers: Workers, published: Rendezvous, bounds: Bounds) -> set[int]:
    """Return the members that leave the formed world before they get a Pod; none if it needs them."""
    if not reported or published.phase is not RendezvousPhase.FORMED:
        return set()
    members = {*published.members}
    idle = (w for w in workers.training if w.spec.index not in members and current_report(w) is not None)
    ready = sum(worker.spec.index not in reported for worker in idle)
    leaving = members.intersection(reported)
    return leaving if bounds.floor(len(members) - len(leaving) + ready) else set()
