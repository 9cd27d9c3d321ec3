"""Meaning of each exit class, for decisions, budgets and advice; and signs of hardware faults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import re2

from crds import xids
from crds.elasticworker import ExitClass
from reconcilers.observed.exit_class import names_device_fault, xid_numbers


class Guilt(IntEnum):
    """Likelihood that a failure was the first of its round; the lowest value is the most likely."""

    DEVICE = 0
    """A device's driver reported it, which explains errors of processes at the same moment."""
    OWN = 1
    """An error, a crash or a kill, which no other process explains."""
    HANGS = 2
    """It hangs, and waits for no other process."""
    FINISHED_EARLY = 3
    """It ended well while others still trained and needed it."""
    SILENT = 4
    """It does not report where it hangs."""
    WAITS = 5
    """It hangs because it waits for others."""
    TIMED_OUT = 6
    """It waited for others until a time-out."""
    FOLLOWS = 7
    """Its text is about a peer's death."""


@dataclass(frozen=True)
class Meaning:
    """Consequences of an end of one class."""

    verb: str
    """Words to follow the worker's name in a sentence."""
    advice: str = ""
    """Advice to users after such a failure."""
    free: bool = False
    """Whether the program did not cause the end, which then never counts for `restartCount`."""
    taken: bool = False
    """Whether somebody or something outside the job took the Pod's place; a deleted Pod counts as killed."""
    avoids_node: bool = False
    """Whether the next Pod prefers another node."""
    needs_new_pod: bool = False
    """Whether another start in the same Pod does not help: more memory is needed, or another node."""
    repeatable: bool = False
    """Whether a repeated error is expected to come every time."""
    shares_count: bool = False
    """Whether the class shares a count for `restartCount` with the others that do."""
    guilt: Guilt = Guilt.OWN
    """Guilt of a failure in place if only its class is left."""


MEANING: Mapping[str, Meaning] = MappingProxyType(
    {
        ExitClass.SUCCEEDED: Meaning("finished", free=True),
        ExitClass.USER_ERROR: Meaning(
            "failed by an error of its own",
            "Correct the script, its data or its command; for the traceback and the log before it: "
            "dlr job logs {name} --failed.",
            repeatable=True,
            shares_count=True,
        ),
        ExitClass.OOM: Meaning(
            "ran out of memory",
            "If the template has a memory limit, the next Pod gets more by itself. Without one, at the most "
            "that resourceLimits.memory and the largest node allow, or if no Pod follows, raise it, or let "
            "the script use less; for the log before it: dlr job logs {name} --failed.",
            needs_new_pod=True,
        ),
        ExitClass.KILLED: Meaning(
            "was killed from outside",
            "Find out who deletes the job's Pods or kills their processes: dlr job status {name}.",
            free=True,
            taken=True,
        ),
        ExitClass.PREEMPTED: Meaning(
            "was preempted",
            "If its node was drained, there is nothing to do. To be preempted less by other jobs, give this "
            "one a higher priorityClassName, or nodes of its own.",
            free=True,
            taken=True,
            avoids_node=True,
        ),
        ExitClass.NODE_LOST: Meaning(
            "was lost with its node",
            "Look at the node: kubectl describe node {node}.",
            free=True,
            taken=True,
            avoids_node=True,
        ),
        ExitClass.HARDWARE_ERROR: Meaning(
            "failed by a fault of its device",
            "Check the node, and keep it out of service until it passes: dlr node-check --nodes {nodes}.",
            avoids_node=True,
            needs_new_pod=True,
            guilt=Guilt.DEVICE,
        ),
        ExitClass.CHECK_FAILED: Meaning(
            "was taken off a faulty node",
            "See why the node is faulty: kubectl describe node {node}.",
            free=True,
            avoids_node=True,
        ),
        ExitClass.HANG: Meaning(
            "hung",
            "Look at the stacks of all ranks at that moment: dlr job logs {name} --failed.",
            repeatable=True,
            guilt=Guilt.HANGS,
        ),
        ExitClass.DAMAGED_CHECKPOINT: Meaning(
            "found a damaged checkpoint in memory",
            "Check the node, whose memory may be bad: dlr node-check --nodes {nodes}.",
            free=True,
        ),
        ExitClass.UNKNOWN: Meaning(
            "failed after a peer whose failure is not reported yet",
            shares_count=True,
            guilt=Guilt.FOLLOWS,
        ),
    }
)


def meaning_of(exit_class: str) -> Meaning:
    """Return the row of a class; an empty one for an unknown class."""
    return MEANING.get(exit_class) or Meaning(f"ended ({exit_class})")


RESTART, STOP = "RESTART", "STOP"
"""First words of `next_start`: whether a start without any change may succeed."""
ENDS: Mapping[str, str] = MappingProxyType(
    {
        "SameErrorRepeated": "the same error came again and again, and comes again until it is corrected",
        "FailurePolicy": "a rule of failurePolicy says so",
        "PodInvalid": "no Pod can be made of the template until it is corrected",
        "PodForbidden": "no Pod may be made until template or policy is changed",
        "DeadlineExceeded": "the time of activeDeadlineSeconds was up",
        "ShardsFailed": "more elements failed than max_failed allows, and will again until corrected",
    }
)
"""Ends after which a job should not be started again unchanged, by the reason of its condition Failed."""


def next_start(exit_class: str, ended_by: str = "") -> str:
    """Return STOP or RESTART and the reason: one sentence without a full stop, for programs and people.

    Args:
        exit_class: class of the failure that is to blame; empty without one.
        ended_by: reason of the condition Failed; empty for a job that goes on.
    """
    if ended_by in ENDS:
        return f"{STOP}: {ENDS[ended_by]}"
    meaning = meaning_of(exit_class)
    is_outside = meaning.free or meaning.guilt is Guilt.DEVICE
    if not ended_by:
        why = "since it was not the program's doing" if is_outside else "until the same error comes too often"
        return f"{RESTART}: dlr does it by itself, {why}"
    if is_outside:
        return f"{RESTART}: the worker {meaning.verb}, which is not the program's doing"
    return (
        f"{STOP}: it failed more often than it may, and nothing shows that the cause is outside the program"
    )


PATTERNS = (
    # ncclGetErrorString of ncclSystemError, and torch's explanation of it (c10d/NCCLUtils.cpp)
    r"unhandled system error|ncclSystemError",
)
"""Texts of errors that are probably the hardware's; the certain ones are in exit_class.py."""

INNOCENT = (
    # torch's addition to ncclSystemError for NCCL < 2.13, which has no ncclRemoteError yet
    r"caused by unexpected exit of a remote peer",
    # NCCL's ncclSystemError of a /dev/shm that is too small
    r"shared memory segment|No space left on device",
)
"""Texts that explain an `unhandled system error` otherwise."""

_LIKELY = re2.compile("|".join(PATTERNS))
_INNOCENT = re2.compile("|".join(INNOCENT))


def smells_of_hardware(exit_class: ExitClass, text: str) -> bool:
    """Whether an end of this class, with this text, requires a new check of its node.

    A wrong suspicion costs one check, so everything likely counts; but not mere consequences of a peer's
    death (`follows_from_a_peer`), or every process failure would lead to a check.
    """
    if exit_class is ExitClass.HARDWARE_ERROR:
        return True
    if meaning_of(exit_class).free:
        return False  # it was ended from outside; its earlier texts have been judged before
    if names_device_fault(text) or xids.call_for_check(xid_numbers(text)):
        return True
    return bool(_LIKELY.search(text)) and not _INNOCENT.search(text)
