"""Messages about a job's shard sets: Events, the condition `ShardsDone`, and the job's failure. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from crds.intervals import count, minus, numbers_of
from crds.model import MAX_CONDITION_MESSAGE, ConditionStatus
from crds.texts import shortened
from reconcilers.observed.conditions import ConditionState
from reconcilers.runtime.acts import Event
from reconcilers.shards.sets import SetState

SHARDS_DONE = "ShardsDone"
PULLING = "Pulling"
ENDED = "ShardsFailed"


def events(before: Iterable[SetState], after: Iterable[SetState]) -> Iterator[Event]:
    """Events for elements that have failed for good, and for sets that are over."""
    known = {each.definition.name: each for each in before}
    for each in after:
        named = each.definition
        old = known.get(named.name)
        is_new = old is None or old.definition.epoch != named.epoch
        fresh = each.failed if old is None or is_new else minus(each.failed, old.failed)
        if fresh:
            times = "once" if named.retries == 0 else f"{named.retries + 1} times"
            message = (
                f"shard set {named.name!r}: {_named(fresh)} failed {times} and will not be tried again"
                f"{_because(each)}"
            )
            yield Event("Warning", "ShardFailed", message)
        if each.finished_at is not None and (old is None or old.finished_at != each.finished_at):
            yield Event("Normal", SHARDS_DONE, _sentence(each))


def ending(sets: Iterable[SetState]) -> str:
    """Why the job fails because of its shard sets; empty if it does not."""
    for each in sets:
        named = each.definition
        if each.scattered:
            return (
                f"shard set {named.name!r}: {each.scattered}, more than its status can name{_because(each)}"
            )
        if each.has_failed:
            many = f"{_elements(count(each.failed))} failed for good ({_named(each.failed)})"
            return f"shard set {named.name!r}: {many}, and max_failed is {named.max_failed}{_because(each)}"
    return ""


def judge(sets: Sequence[SetState], *, has_ended: bool) -> ConditionState:
    """The condition of one or more sets. It changes when a set begins, ends, or has failed elements, and not
    with progress.

    Args:
        has_ended: whether the job has ended, so that no worker pulls any more.
    """
    found = _state(sets)
    if not has_ended or found.reason != PULLING:
        return found
    message = shortened(f"the job has ended; {found.message}", MAX_CONDITION_MESSAGE)
    return ConditionState(found.status, "JobEnded", message)


def _state(sets: Sequence[SetState]) -> ConditionState:
    unfinished = [each for each in sets if not each.is_over or each.failed]
    status, reason = ConditionStatus.TRUE, "AllDone"
    message = "; ".join(_sentence(each) for each in sets)
    if any(each.failed for each in sets):
        status, reason = ConditionStatus.FALSE, "ElementsFailed"
        message = "; ".join(_sentence(each) for each in sets if each.failed)
    elif unfinished:
        status, reason = ConditionStatus.FALSE, PULLING
        named = (f"{each.definition.name!r} of {each.definition.size} elements" for each in unfinished)
        message = "not done yet: " + ", ".join(named)
    return ConditionState(status, reason, shortened(message, MAX_CONDITION_MESSAGE))


def _sentence(each: SetState) -> str:
    name, size = each.definition.name, each.definition.size
    if not each.failed:
        return f"shard set {name!r}: all {size} elements are done"
    many = f"{each.done} of {size} elements are done, " if each.is_over else ""
    so_far = "" if each.is_over else " so far"
    failed = f"{count(each.failed)} failed for good{so_far}: {_named(each.failed)}"
    return f"shard set {name!r}: {many}{failed}{_because(each)}"


def _elements(number: int) -> str:
    return f"{number} element" if number == 1 else f"{number} elements"


def _named(elements: tuple[tuple[int, int], ...]) -> str:
    return f"{'element' if count(elements) == 1 else 'elements'} {numbers_of(elements)}"


def _because(each: SetState) -> str:
    return f"; the first: {each.reason}" if each.reason else ""
