"""The status of an ElasticJob as it is written: that of a large job has less than 10,000 bytes. Pure.

All agents of a job watch its object, so with ten thousand of them each byte of it is sent ten thousand times.
What is left out here is told elsewhere: a sentence is whole in its Event and in the ElasticWorkers that it is
about, and all conditions follow from the generation that the status itself has observed.
"""

from __future__ import annotations

from typing import Any

import orjson

from controller.wording import shortened
from crds.elasticjob import MANY_WORKERS, ElasticJobStatus

MAX_CONDITIONS_BYTES = 2_900
"""Of a large job's conditions as JSON. All else has up to 7,090 on a bad day (tests/crds/test_size.py)."""
LEAST_MESSAGE = 60
"""Bytes of a condition's message that are never cut, so that each can say what it is about; those who read
them again (`loss.py`, `slow.py`, `saving.py`) find there what they look for."""
OVER = {"Reconciled": "True", "Suspended": "False"}
"""Without one of these conditions the job is as it says: a failure of our own, or a pause, is over."""
REFERENCES = {"WorldFormed": {"message": "see status.rendezvous.reason"}}
"""Instead of a sentence that is there anyway."""
MAX_SENTENCE = 80
"""Characters of `status.message`, `status.lastFailure.message` and `status.scaling.opportunity.reason`."""


def wire_of(status: ElasticJobStatus, workers: int) -> dict[str, Any]:
    """The wire form; of a job with more than `MANY_WORKERS`, as short as it has to be.

    Args:
        workers: how many the job has.
    """
    wire = status.to_wire()
    if workers <= MANY_WORKERS:
        return wire
    wire["conditions"] = _fitted(wire["conditions"])
    opportunity = wire.get("scaling", {}).get("opportunity", {})
    for holder, text in ((wire, "message"), (wire.get("lastFailure"), "message"), (opportunity, "reason")):
        if holder:
            holder[text] = shortened(holder[text], MAX_SENTENCE)
    return wire


def _fitted(conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conditions without their generation, and their messages within the room that is left.

    Where they have more to say, what is over is left out, and the longest messages are cut, to one length.
    """
    bare = [{k: v for k, v in each.items() if k != "observedGeneration"} for each in conditions]
    if len(orjson.dumps(bare)) <= MAX_CONDITIONS_BYTES:
        return bare
    lasting = [each for each in bare if OVER.get(each["type"]) != each["status"]]
    bare = [each | REFERENCES.get(each["type"], {}) for each in lasting]
    sizes = [_size(each["message"]) for each in bare]
    room = MAX_CONDITIONS_BYTES - (len(orjson.dumps(bare)) - sum(sizes))
    limit = max(_level(sizes, room), LEAST_MESSAGE)
    return [each | {"message": _cut(each["message"], limit)} for each in bare]


def _level(sizes: list[int], room: int) -> int:
    """The greatest limit of each under which all have that room together, and which some are above."""
    for taken, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - taken)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def _cut(message: str, limit: int) -> str:
    if _size(message) <= limit:
        return message
    cut = message[: limit - _size("…")]
    while _size(cut) > limit - _size("…"):
        cut = cut[:-1]
    return cut + "…"


def _size(text: str) -> int:
    """Bytes in JSON."""
    return len(orjson.dumps(text)) - len('""')
