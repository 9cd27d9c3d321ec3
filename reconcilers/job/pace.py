"""How often the counts of a large job are written: each write goes to etcd and to all who watch jobs.

Workers that become ready one after the other change nothing but counts, and the sentences that tell them.
"""

from __future__ import annotations

from typing import Any

MAX_SECONDS = 1.0
_COUNTS = frozenset(("replicas", "replicaStatuses", "message", "conditions", "rendezvous", "usage"))


def seconds_to_tell(status: dict[str, Any], patch: dict[str, Any], workers: int, age_seconds: float) -> float:
    """Until this patch is to be written; not above 0: now.

    Args:
        status: as it is stored.
        age_seconds: how long ago it was written.
    """
    if not patch or not _are_counts(status, patch):
        return 0.0
    return min(workers // 100 / 10, MAX_SECONDS) - age_seconds


def _are_counts(status: dict[str, Any], patch: dict[str, Any]) -> bool:
    world = patch.get("rendezvous", {}).keys()
    if not patch.keys() <= _COUNTS or not world <= {"reason", "waitsFor"}:
        return False
    known, wanted = status.get("conditions", []), patch.get("conditions")
    return wanted is None or list(map(_without_message, known)) == list(map(_without_message, wanted))


def _without_message(condition: dict[str, Any]) -> dict[str, Any]:
    return condition | {"message": "", "data": None}
