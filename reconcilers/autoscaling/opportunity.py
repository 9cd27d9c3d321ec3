"""Decides whether a job grows into free room, or gives some back (`elasticPolicy.opportunistic`). Pure.

Free room is found by a *probe*: the count is raised by one unit, and the scheduler decides whether its Pods
get a node, while the world goes on without them. A probe that is placed is followed by a larger one at once
(`FURTHER`), so that a growth by many is one restart. One that finds no node within `probeSeconds` is given
back, and the next comes after half of that time (`REST`), so that quotas and queues are free for others
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.wording import counted
from crds.job_spec import Opportunistic
from crds.job_status import MAX_WHY_NOT_MORE, GrowthStatus
from crds.texts import shortened

FURTHER = 3
"""Size of a probe as a multiple of the room that earlier ones have found: each costs the time to create and
place a Pod, and the new workers wait for the last probe."""
REST = 0.5
"""Pause after a probe that found no node, as a share of `probeSeconds`. Others that wait for a quota get it
then: refused Pods are retried at random intervals (`reconcilers/worker/maker.py`)."""
REMEMBERED_SECONDS = 3_600.0
"""Pause after a growth that brought too little, did not start, or was refused."""
MOST_DOUBLINGS = 12
"""Limit of doublings of `probeSeconds`: with 1 s, they exceed `REMEMBERED_SECONDS`."""
START_SECONDS = 900.0
"""Time, beside the wait for a checkpoint, in which Pods with a node start, or are given back."""
EXPECTED_STAY_SECONDS = 3_600.0
"""Time for which room is expected to stay free."""
MEASURE_SECONDS = 5.0
"""Time between two looks at the number of steps, which trigger none."""


@dataclass(frozen=True)
class Room:
    """Observations of a job's extra workers, with their cost and gain."""

    count: int
    """Count of workers in the job's spec."""
    most: int
    """Largest count of workers, in whole units."""
    unit: int
    requested_seconds: float
    """Time since the count was set, or the newest Pod was requested."""
    is_steady: bool
    """Whether the world trains, is complete except for extra workers, and nothing else is changing."""
    world: int = 0
    """Workers of the present world; of the last one, while there is none."""
    stuck: int = 0
    """Extra workers whose Pods find no node."""
    pod_refused: str = ""
    """Why the API server refuses the Pod of one of these."""
    not_granted: str = ""
    """Why the job's queue grants fewer than `count`; empty if it grants them, or there is none."""
    cannot_be_granted: str = ""
    """Why the job's queue will never grant more; empty if it may."""
    lost: int = 0
    """Extra workers that have lost their Pod or node."""
    exhausted: int = 0
    """Extra workers that get no further Pod after too many failures."""
    failed: str = ""
    """The last failure of training itself, as a message."""
    on_their_way: int = 0
    """Extra workers without a node that are not known to be stuck."""
    starting: int = 0
    """Extra workers that have a node, and do not train yet."""
    starting_seconds: float = 0.0
    """Time since the first Pod of these was requested."""
    checkpoint_seconds: float = 0.0
    """Longest time that ready workers wait for a checkpoint."""
    trained_seconds: float = 0.0
    """Age of the world with extra workers."""
    is_measured: bool = False
    """Whether the speed of the present world is measured."""
    efficiency: float | None = None
    """Gain of the workers beyond `grown_from`, as a share of a linear gain; None if it is not measured."""
    restart_seconds: float = 0.0
    """Cost of a restart: the pause, and repeated steps."""
    refused: str = ""
    """Why the last requested count was refused."""


@dataclass(frozen=True)
class Step:
    known: GrowthStatus
    """The next state."""
    count: int
    """Desired count of workers."""
    look_again_seconds: float | None = None
    message: str = ""
    """Message of an Event why workers that had a node are given back."""


def next_step(policy: Opportunistic, known: GrowthStatus, room: Room, now: datetime) -> Step:
    """Decide on the next state and count of workers.

    The result is the same until the job has the requested count.
    """
    if known.unpaid_from is not None and not room.lost and _has_paid(room, known.unpaid_from):
        known = known.model_copy(update={"unpaid_from": None, "in_vain": 0})
    if room.refused and known.ceiling is None:
        return _back(known, room, max(known.base, _present(room)), room.refused, REMEMBERED_SECONDS, now)
    if known.ceiling is not None and room.count > known.ceiling:
        return Step(known, known.ceiling)
    if room.lost:
        return _after_loss(policy, known, room, now)
    if room.exhausted:
        reason = f"{_extra(room.exhausted)} given back: no further Pod, after too many that failed"
        left = room.count - room.exhausted
        return _back(known, room, left, reason, REMEMBERED_SECONDS, now, known.in_vain)
    if room.failed and known.grown_from is not None and room.world > known.grown_from:
        return _after_failure(policy, known, known.grown_from, room, now)
    if room.stuck + room.on_their_way + room.starting:
        return _while_it_grows(policy, known, room, now)
    if not room.is_steady:
        return Step(known, room.count)
    if known.grown_from is not None and room.count > known.grown_from:
        return _judged(policy, known, room, now)
    return _probe(policy, known, room, now)


def reset_growth(
    policy: Opportunistic, known: GrowthStatus, count: int, base: int, now: datetime
) -> GrowthStatus:
    """The state after somebody else has set the count.

    After a lower count for a job that has grown, as after a loss, the next probe comes after a pause: so a
    tool that lowers the count again and again causes fewer and fewer restarts.
    """
    before = known.replicas
    if not known.base < before or count >= before:
        return GrowthStatus(base=base, replicas=count)
    is_unpaid = known.grown_from is not None or known.unpaid_from is not None
    in_vain = known.in_vain + 1 if is_unpaid else 0
    until = now + timedelta(seconds=_pause_seconds(policy, in_vain))
    if base == known.base and known.not_before is not None:
        until = max(until, known.not_before)
    reason = f"the count was set back from {before} to {count}"
    return GrowthStatus(base=base, replicas=count, not_before=until, in_vain=in_vain, reason=reason)


def with_base(known: GrowthStatus, base: int, unit: int) -> GrowthStatus:
    """The state with another number of needed workers, after an edit; the ceiling is at least that number."""
    ceiling = None if known.ceiling is None else base + max(known.ceiling - base, 0) // unit * unit
    if (base, ceiling) == (known.base, known.ceiling):
        return known
    return known.model_copy(update={"base": base, "ceiling": ceiling})


def _pause_seconds(policy: Opportunistic, in_vain: int) -> float:
    return min(policy.probe_seconds * 2.0 ** min(in_vain, MOST_DOUBLINGS), REMEMBERED_SECONDS)


def _pause_left(known: GrowthStatus, now: datetime) -> float:
    """The time until the next probe; 0 if it is so far ahead that the clock must have been wrong."""
    left = (known.not_before - now).total_seconds() if known.not_before is not None else 0.0
    return left if 0.0 < left < 2 * REMEMBERED_SECONDS else 0.0


def _has_paid(room: Room, before: int) -> bool:
    """Whether the world, since it grew from `before` workers, has gained more than its restart has cost."""
    more = room.world - before
    return more > 0 and room.trained_seconds * more >= room.restart_seconds * room.world


def _present(room: Room) -> int:
    """Number of workers with a node."""
    return room.count - room.stuck - room.on_their_way


def _back(
    known: GrowthStatus, room: Room, count: int, reason: str, seconds: float, now: datetime, in_vain: int = 0
) -> Step:
    """Give back down to `count`, in whole units, and pause for `seconds`."""
    kept = known.base + max(count - known.base, 0) // room.unit * room.unit
    until = now + timedelta(seconds=seconds)
    grown_from = known.grown_from if known.grown_from is not None and kept > known.grown_from else None
    update = {
        "ceiling": kept,
        "not_before": until,
        "reason": shortened(reason, MAX_WHY_NOT_MORE),
        "in_vain": in_vain,
        "grown_from": grown_from,
        "unpaid_from": None,
    }
    return Step(known.model_copy(update=update), kept, seconds, reason)


def _after_loss(policy: Opportunistic, known: GrowthStatus, room: Room, now: datetime) -> Step:
    """Give back lost workers, whose room somebody else has now. If the growth had not paid for its restart,
    the pause is longer."""
    has_grown = known.grown_from is not None and room.world > known.grown_from
    before = known.grown_from if has_grown else known.unpaid_from
    in_vain = known.in_vain
    if before is not None and room.trained_seconds > 0:
        in_vain = 0 if _has_paid(room, before) else in_vain + 1
    seconds = _pause_seconds(policy, in_vain)
    left = _present(room) - room.lost
    why = "its Pod was taken, or its node" if room.lost == 1 else "their Pods were taken, or their nodes"
    reason = f"{_extra(room.lost)} lost: {why}"
    return _back(known, room, left, reason, seconds, now, in_vain)


def _after_failure(
    policy: Opportunistic, known: GrowthStatus, before: int, room: Room, now: datetime
) -> Step:
    """Give back a growth after which training failed before its gain was measured. The larger world may be
    the cause, so the job spends no more of its budget on it."""
    in_vain = known.in_vain + 1
    reason = f"training failed soon after it grew from {before} to {room.world} workers: {room.failed}"
    return _back(known, room, before, reason, _pause_seconds(policy, in_vain), now, in_vain)


def _while_it_grows(policy: Opportunistic, known: GrowthStatus, room: Room, now: datetime) -> Step:
    start_seconds = START_SECONDS + room.checkpoint_seconds
    if room.starting_seconds >= start_seconds:
        reason = f"{_extra(room.starting)} given back: not training {start_seconds:g} s after having a node"
        there = _present(room) - room.starting
        return _back(known, room, there, reason, REMEMBERED_SECONDS, now, known.in_vain)
    waiting = room.stuck + room.on_their_way
    if waiting:
        left = policy.probe_seconds - room.requested_seconds
        if left > 0:
            return Step(known, room.count, left)
        cause = room.not_granted or room.pod_refused
        lacks, why = ("quota" if room.not_granted else "Pod" if cause else "node"), cause and f": {cause}"
        reason = f"no {lacks} for {counted(waiting, 'more worker')} within {policy.probe_seconds} s{why}"
        rest = REST * policy.probe_seconds
        return replace(_back(known, room, _present(room), reason, rest, now, known.in_vain), message="")
    first = known.grown_from if known.grown_from is not None else known.base
    found = max(room.count - first, room.unit)
    more = min(room.count + FURTHER * found, room.most)
    if more > room.count and not (_pause_left(known, now) or room.cannot_be_granted):
        return Step(known.model_copy(update={"ceiling": None, "not_before": None}), more)
    return Step(known, room.count, start_seconds - room.starting_seconds)


def _judged(policy: Opportunistic, known: GrowthStatus, room: Room, now: datetime) -> Step:
    """Judge a growth, once the larger world has made some steps."""
    before = known.grown_from
    assert before is not None
    if not room.is_measured:
        return Step(known, room.count, MEASURE_SECONDS)
    if room.efficiency is None or room.efficiency >= policy.min_efficiency:
        good = known.model_copy(update={"grown_from": None, "unpaid_from": before, "reason": ""})
        return Step(good, room.count, 0.0)
    share = f"{max(room.efficiency, -9.99):.0%}"
    reason = (
        f"{room.count} workers instead of {before} add {share} of a linear gain, less than minEfficiency "
        f"{policy.min_efficiency:.0%}"
    )
    return _back(known, room, before, reason, REMEMBERED_SECONDS, now)


def _probe(policy: Opportunistic, known: GrowthStatus, room: Room, now: datetime) -> Step:
    if left := _pause_left(known, now):
        return Step(known, room.count, left)
    more = room.count + room.unit
    if more > room.most:
        present = counted(room.count, "worker is", "workers are")
        full = f"{present} requested, and maxReplicas leaves no room for {room.unit} more"
        return Step(known.model_copy(update={"reason": full if room.count == known.base else ""}), room.count)
    if room.cannot_be_granted:
        reason = shortened(f"its queue grants no more: {room.cannot_be_granted}", MAX_WHY_NOT_MORE)
        return Step(known.model_copy(update={"reason": reason}), room.count, policy.probe_seconds)
    if not room.is_measured:
        return Step(known, room.count, MEASURE_SECONDS)
    if EXPECTED_STAY_SECONDS * room.unit / max(room.count, 1) <= room.restart_seconds:
        reason = "a restart would cost more than the expected gain"
        return Step(known.model_copy(update={"reason": reason}), room.count, policy.probe_seconds)
    update = {"grown_from": room.count, "ceiling": None, "not_before": None, "reason": ""}
    return Step(known.model_copy(update=update), more, policy.probe_seconds)


def _extra(number: int) -> str:
    return counted(number, "extra worker is", "extra workers are")
