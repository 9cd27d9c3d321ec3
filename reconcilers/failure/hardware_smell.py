"""Failures that smell of hardware: after one of them, no earlier test of the job's nodes counts.

A wrong suspicion costs one test, so the table takes in what is likely; but not what merely follows from a
peer's death (`follows_from_a_peer`), or every process failure would be followed by a test.
"""

from __future__ import annotations

import re2

from crds import xids
from crds.elasticworker import ExitClass
from reconcilers.failure.meaning import meaning_of
from reconcilers.observed.exit_class import names_device_fault, xid_numbers

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
    """Whether an end of this class, that says this, calls for a test of its node."""
    if exit_class is ExitClass.HARDWARE_ERROR:
        return True
    if meaning_of(exit_class).free:
        return False  # it was ended from outside: what it said before has been judged before
    if names_device_fault(text) or xids.call_for_check(xid_numbers(text)):
        return True
    return bool(_LIKELY.search(text)) and not _INNOCENT.search(text)
