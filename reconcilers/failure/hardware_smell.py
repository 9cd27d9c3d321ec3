"""Failures that smell of hardware: after one of them, no earlier check of the job's nodes counts.

A wrong suspicion costs one check, so the table takes in what is likely; but not what merely follows from a
peer's death (`follows_from_a_peer`), or every process failure would be followed by a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import re2

from crds import names, xids
from crds.agent_report import AgentFailure
from crds.elasticworker import ElasticWorker, ExitClass
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.meaning import meaning_of
from reconcilers.observed.exit_class import classify_process, names_device_fault, xid_numbers
from reconcilers.observed.worker_state import current_report

PATTERNS = (
    # ncclGetErrorString of ncclSystemError, and torch's explanation of it (c10d/NCCLUtils.cpp)
    r"unhandled system error|ncclSystemError",
)
"""What is likely to be the hardware's; what is certain, exit_class.py knows as HardwareError."""

INNOCENT = (
    # torch's addition to ncclSystemError for NCCL < 2.13, which has no ncclRemoteError yet
    r"caused by unexpected exit of a remote peer",
    # NCCL's ncclSystemError of a /dev/shm that is too small
    r"shared memory segment|No space left on device",
)
"""With these in it, an `unhandled system error` has another explanation."""

_LIKELY = re2.compile("|".join(PATTERNS))
_INNOCENT = re2.compile("|".join(INNOCENT))


def smells_of_hardware(exit_class: ExitClass, text: str) -> bool:
    """Whether an end of this class, that says this, calls for a check."""
    if exit_class is ExitClass.HARDWARE_ERROR:
        return True
    if meaning_of(exit_class).free:
        return False  # it was ended from outside: what it said before has been judged before
    if names_device_fault(text) or xids.call_for_check(xid_numbers(text)):
        return True
    return bool(_LIKELY.search(text)) and not _INNOCENT.search(text)


def suspected_at(
    known: datetime | None, workers: Sequence[ElasticWorker], published: Rendezvous, now: datetime
) -> datetime | None:
    """When something last failed that smells of hardware.

    Level-triggered: asked again, it says the same. A failure in place counts while its round is the published
    one, whether it broke the world or was told later; and once a round, since `known` is then after the
    round's beginning.
    """
    failed = [w for w in workers if w.spec.type == names.WORKER and _has_failed(w)]
    ends = [w.status.last_exit for w in failed if w.status.last_exit is not None]
    times = [end.time for end in ends if end.suspects_hardware]
    if known is not None:  # what is later than now was counted before the clock was set back
        times = [time for time in times if time <= now or known > now]
    accounted = known is not None and published.formed_at is not None and known >= published.formed_at
    if not accounted and any(_failed_in(worker, published) for worker in failed):
        times.append(now)
    found = max([*times, *([known] if known else [])], default=None)
    return None if found is None else min(found, now)


def _has_failed(worker: ElasticWorker) -> bool:
    report = worker.status.agent
    return worker.status.last_exit is not None or (report is not None and report.failure is not None)


def _failed_in(worker: ElasticWorker, published: Rendezvous) -> bool:
    report = current_report(worker)
    if published.phase is RendezvousPhase.FORMING or report is None:
        return False
    failure = report.failure
    return failure is not None and failure.round == published.round and _failure_smells(failure)


def _failure_smells(failure: AgentFailure) -> bool:
    return smells_of_hardware(classify_process(failure), f"{failure.message}\n{failure.log_tail}")
