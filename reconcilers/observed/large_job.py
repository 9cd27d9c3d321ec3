"""The status of an ElasticJob as it is written: the object of a large job has 10,000 bytes at most. Pure.

Each write of it goes to etcd and to all who watch jobs; agents watch the ElasticWorld instead.
What is left out here is told elsewhere: a sentence is whole in its Event and in the ElasticWorkers that it is
about, and all conditions follow from the generation that the status itself has observed.
"""

from __future__ import annotations

from typing import Any

import orjson

from crds.job_status import MANY_WORKERS, ElasticJobStatus

MAX_STATUS_BYTES = 8_500
"""Of a large job's status as JSON; spec and metadata have 1,500 (tests/crds/test_size.py). What is not in
sentences may have more by itself, where half of the slots are out by chance."""
LEAST_SENTENCE = 60
"""Bytes of a sentence that are never cut, so that each can say what it is about."""
OVER = {"Reconciled": "True", "Suspended": "False"}
"""Without one of these conditions the job is as it says: a failure of our own, or a pause, is over."""
REFERENCES = {"WorldFormed": {"message": "see status.rendezvous.reason"}}
"""Instead of a sentence that is there anyway."""


def wire_of(status: ElasticJobStatus, workers: int) -> dict[str, Any]:
    """The wire form; of a job with more than `MANY_WORKERS`, within `MAX_STATUS_BYTES`.

    What would be beyond is found in this order: the generation of each condition, conditions that are over or
    said elsewhere, and the ends of the longest sentences, which are cut to one length.

    Args:
        workers: how many the job has.
    """
    wire = status.to_wire()
    if workers <= MANY_WORKERS or _size(wire) <= MAX_STATUS_BYTES:
        return wire
    wire["conditions"] = [_without_generation(each) for each in wire["conditions"]]
    if _size(wire) <= MAX_STATUS_BYTES:
        return wire
    lasting = [each for each in wire["conditions"] if OVER.get(each["type"]) != each["status"]]
    wire["conditions"] = [each | REFERENCES.get(each["type"], {}) for each in lasting]
    sentences = _sentences(wire)
    sizes = [_text_size(holder[key]) for holder, key in sentences]
    room = MAX_STATUS_BYTES - (_size(wire) - sum(sizes))
    limit = max(_level(sizes, room), LEAST_SENTENCE)
    for holder, key in sentences:
        holder[key] = _cut(holder[key], limit)
    return wire


def _sentences(wire: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Lists the sentences as holder and key."""
    opportunity = wire.get("scaling", {}).get("opportunity", {})
    others = ((wire, "message"), (wire.get("lastFailure", {}), "message"), (opportunity, "reason"))
    conditions = [(each, "message") for each in wire["conditions"]]
    return conditions + [(holder, key) for holder, key in others if key in holder]


def _without_generation(condition: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in condition.items() if key != "observedGeneration"}


def _level(sizes: list[int], room: int) -> int:
    """The greatest limit of each under which all have that room together, and which some are above."""
    for taken, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - taken)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def _cut(sentence: str, limit: int) -> str:
    if _text_size(sentence) <= limit:
        return sentence
    cut = sentence[: limit - _text_size("…")]
    while _text_size(cut) > limit - _text_size("…"):
        cut = cut[:-1]
    return cut + "…"


def _size(value: object) -> int:
    """Bytes as JSON."""
    return len(orjson.dumps(value))


def _text_size(text: str) -> int:
    """Bytes in JSON, without the quotes."""
    return _size(text) - len('""')
