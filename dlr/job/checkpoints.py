"""What a job's newest checkpoints are, as its agents told last; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crds import names
from dlr.job.report import current_report, is_finished, ranks

JSON = dict[str, Any]


def checkpoints_line(job: JSON, workers: Sequence[JSON]) -> str:
    """The newest step in memory and in storage, and how often one goes to memory; empty if there is none."""
    reports = [current_report(worker) for worker in workers]
    in_world = ranks(job)
    memories = [
        report.get("memory") or {}
        for worker, report in zip(workers, reports, strict=True)
        if worker["spec"]["type"] == names.WORKER and worker["spec"]["index"] in in_world
    ]
    parts = [] if is_finished(job) else _in_memory(memories, wants_copies=_wants_copies(job))
    stored = [(report.get("progress") or {}).get("checkpointStep") for report in reports]
    if known := [step for step in stored if step is not None]:
        parts.append(f"step {max(known)} in storage")
    return ", ".join(parts)


def _wants_copies(job: JSON) -> bool:
    asked = job["spec"]["replicaSpecs"].get(names.WORKER, {}).get("memoryCheckpoint") or {}
    return bool(asked.get("replicas"))


def _in_memory(memories: Sequence[JSON], *, wants_copies: bool) -> list[str]:
    """Return the checkpoints in the memories of all workers of a world."""
    parts = []
    step, replicated = (_of_all(memories, key) for key in ("step", "replicatedStep"))
    if step is not None:
        parts.append(f"step {step} in memory")
    if replicated is not None:
        parts.append(f"step {replicated} in other Pods' memory too")
    elif step is not None and wants_copies:
        alone = len(memories) == 1
        parts.append("no other Pod to hold a copy" if alone else "none in other Pods' memory yet")
    every = next((memory["every"] for memory in memories if memory.get("every")), None)
    if parts and every is not None:
        parts.append("saved every step" if every == 1 else f"saved every {every} steps")
    return parts


def _of_all(memories: Sequence[JSON], key: str) -> int | None:
    steps = [memory.get(key) for memory in memories]
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None
