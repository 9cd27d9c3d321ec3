"""World forming: which workers train together (docs/contract.md, "States"). Pure.

`propose` answers for people and bounds alone; `decide` (decision.py) adds vetting, slow nodes and waits. A
world shrinks here (`_propose_when_reforming`, `_propose_when_formed`, `_shrink`) and nowhere else, but for
slow members, which decision.py leaves out. A standby worker needs no step of its own: it is one of those that
can join, and `form` prefers present members and then the lowest indices.

Rank is the position by index, so ranks are stable and rank 0 is always the lowest slot. A round, once
published as Formed, has one member list for ever: no decision changes the members of a round, and the write
carries the resourceVersion decided from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from controller.wording import counted
from crds.agent_report import AgentReport, AgentState, FailureCause
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.failure.facts import Break
from reconcilers.observed.ending import reported_failure
from reconcilers.observed.exit_class import KILL_EXIT_CODES
from reconcilers.observed.slots import named
from reconcilers.world.participants import Bounds, Participant


def broken_members(published: Rendezvous, participants: Sequence[Participant]) -> tuple[Break, ...]:
    """The members of a formed world that are not in it any more, and why."""
    if published.phase is not RendezvousPhase.FORMED:
        return ()
    by_index, round_ = {p.index: p for p in participants}, published.round
    found = []
    for index, incarnation in zip(published.members, published.incarnations, strict=True):
        member = by_index.get(index)
        if member is None:
            found.append(Break(index, f"worker {index} is no longer there", departed=True))
            continue
        broken = _failure_of(index, incarnation, round_, member)
        if member.leaving and not member.succeeded:
            broken = _departure_of(member, broken)
        if broken is not None:
            found.append(broken)
    return tuple(found)


def _departure_of(member: Participant, failure: Break | None) -> Break:
    if failure is None:
        return Break(member.index, member.leaving, departed=True, trains_on=True)
    return replace(failure, departed=True)


def _failure_of(index: int, incarnation: int, round_: int, member: Participant) -> Break | None:
    if member.succeeded:
        return _missing_again(index, round_, member.report)
    if member.incarnation < incarnation:
        return None  # its last report is older than the world
    if member.incarnation != incarnation:
        return Break(index, f"worker {index} was relaunched as incarnation {member.incarnation}")
    if not member.alive:
        what = "leaves" if member.stops_in_good_order else "was lost"
        return Break(
            index,
            f"worker {index} {what}: {member.gone_because}".removesuffix(": "),
            stops_in_good_order=member.stops_in_good_order,
        )
    report = member.report
    if report is None or report.observed_round < round_:
        return None  # has not acted on this round yet
    if report.state is AgentState.FAILED or (report.state is AgentState.STOPPED and _has_failed(report)):
        return Break(index, _how_it_failed(index, report), report)
    if report.state not in (AgentState.STOPPED, AgentState.READY):
        return None
    what = "stopped" if report.state is AgentState.STOPPED else "left the world"
    if report.departure is None or report.departure.round != round_:
        return Break(index, f"worker {index} {what}")
    return Break(
        index,
        f"worker {index} {what} after step {report.departure.step}, as all did",
        stops_in_good_order=True,
        took_part=report.state is AgentState.READY,
    )


def _missing_again(index: int, round_: int, report: AgentReport | None) -> Break | None:
    """The break by a worker that has succeeded, where the world is of a later round than it has finished."""
    if report is None or report.observed_round >= round_:
        return None
    return Break(index, f"worker {index} had finished in round {report.observed_round}, and has ended")


def _has_failed(report: AgentReport) -> bool:
    """Whether its processes failed before it left, as torch's own launcher says when it does."""
    return reported_failure(report) is not None


def _how_it_failed(index: int, report: AgentReport) -> str:
    """The failure without the fault: of a hang, ranks that wait report first as often as not."""
    failure = report.failure
    if failure is not None and failure.cause is FailureCause.HANG:
        return f"worker {index} reports a hang"
    if failure is not None and failure.cause is FailureCause.TIMED_OUT:
        return f"a collective of worker {index} timed out"
    if failure is not None and failure.cause is None and failure.exit_code in KILL_EXIT_CODES:
        return f"training processes of worker {index} were killed from outside"
    return f"training processes of worker {index} failed"


NAMED_BREAKS = 3
"""The others are counted: a rack that is lost must not fill the status."""
WORDS = ("reason", "waits_for", "resume")
"""Fields of a world that are for people: no decision rests on them."""
MAX_BREAKS = 184
"""Characters of their reasons, within `MAX_WORLD_REASON`."""


@dataclass(frozen=True)
class Decision:
    rendezvous: Rendezvous
    breaks: tuple[Break, ...] = ()
    """Why the published world had to be given up; only in the decision that gives it up."""
    look_again_seconds: float | None = None
    left_out: frozenset[int] = frozenset()
    """Workers on slow nodes that the world does without."""
    to_vet: tuple[int, ...] = ()
    """Workers to be tested now, before the next world."""

    @property
    def broken(self) -> bool:
        """Whether the world cannot go on; one that is given up only for the next could."""
        return any(not b.trains_on for b in self.breaks)

    @property
    def failed(self) -> bool:
        """Whether that is by a failure: who stops in good order leaves, as when the world shrinks."""
        return leaves_dead_peers(self.breaks)


def propose(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    breaks: Sequence[Break] | None = None,
) -> Decision:
    """Proposes the next world by who is there; the published one where nothing changes.

    Args:
        participants: the workers that count, one an index; of a slot and its replacement, one (`settle`).
        breaks: `broken_members` of these participants, if they are at hand.
    """
    ranked = sorted(participants, key=attrgetter("index"))
    if published.phase is RendezvousPhase.FORMED:
        breaks = broken_members(published, ranked) if breaks is None else breaks
        return _propose_when_formed(published, ranked, bounds, now, tuple(breaks))
    if published.phase is RendezvousPhase.REFORMING:
        return _propose_when_reforming(published, ranked, bounds, now)
    return _propose_when_forming(published, ranked, bounds, now)


def dissolve(published: Rendezvous, reason: str) -> Rendezvous:
    """No world, keeping the round: what a suspended job publishes.

    The address stays: while its processes leave, those of other replica groups meet there.
    """
    return Rendezvous(
        round=published.round,
        master_address=published.master_address,
        master_port=published.master_port,
        phase=RendezvousPhase.FORMING,
        reason=reason,
        broken_round=published.broken_round,
    )


def at_the_end(published: Rendezvous) -> Rendezvous:
    """The last world of a job that has ended: it waits for nothing, and nobody is asked where it hangs."""
    update = {"hang_since": None, "checkpoint_awaited_since": None, "waits_for": ""}
    return published.model_copy(update=update)


def given_up(published: Rendezvous, reason: str, now: datetime, *, broken: bool = False) -> Rendezvous:
    """The same world, which waits for the next from now on; `broken` if processes of it are dead."""
    return published.model_copy(
        update={
            "phase": RendezvousPhase.REFORMING,
            "reason": reason,
            "waits_for": "",
            "reforming_since": now,
            "checkpoint_awaited_since": None,
            "resume": None,
            "broken_round": published.round if broken else published.broken_round,
        }
    )


def is_ending(published: Rendezvous, participants: Sequence[Participant]) -> bool:
    """Whether a member of a formed world has finished: so near to its end, training is not disturbed."""
    members, round_ = set(published.members), published.round
    return any(
        p.succeeded
        or (
            p.report is not None
            and p.report.state is AgentState.SUCCEEDED
            and p.report.observed_round == round_
        )
        for p in participants
        if p.index in members
    )


def checkpoint_wait(
    published: Rendezvous,
    people: Sequence[Participant],
    newcomers: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
) -> float:
    """Seconds for which ready newcomers are still kept waiting for the world to save a checkpoint.

    A test of their nodes comes behind this wait, and after it they join again: they do not wait twice.
    """
    if not bounds.grow_at_checkpoint_seconds:
        return 0.0
    joined = [p.seconds_since_joined for p in newcomers]
    members = frozenset(published.members)
    saved = [p.seconds_since_checkpoint for p in people if p.index in members]
    if any(seconds is not None and seconds < min(joined) for seconds in saved):
        return 0.0
    since = published.checkpoint_awaited_since
    waited = max(joined) if since is None else max(*joined, (now - since).total_seconds())
    return max(bounds.grow_at_checkpoint_seconds - waited, 0.0)


def _propose_when_formed(
    published: Rendezvous,
    ranked: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    breaks: tuple[Break, ...],
) -> Decision:
    joinable = [p for p in ranked if p.joinable]
    if all(b.trains_on for b in breaks):
        too_few = bounds.floor(bounds.desired) and not bounds.floor(len(joinable))
        if is_ending(published, ranked) or (breaks and too_few):
            return Decision(published)  # who is to leave has to stay for now
    if breaks:
        named = sorted(breaks, key=lambda b: b.took_part)[:NAMED_BREAKS]
        reason = shortened("; ".join(b.reason for b in named), MAX_BREAKS)
        if len(breaks) > NAMED_BREAKS:
            reason += f"; and {len(breaks) - NAMED_BREAKS} more"
        complete = len(joinable) >= bounds.desired or _nobody_is_lost(
            published, {b.index for b in breaks if b.departed}, joinable
        )
        broken, waits = leaves_dead_peers(breaks), bounds.shrink_after_seconds
        if complete and bounds.floor(len(joinable)):
            if not (apart := _still_to_leave(published, ranked)):
                keep = set(published.members)
                return Decision(
                    form(published, joinable, bounds, reason, now, keep=keep, broken=broken), breaks
                )
            waiting = _with_leaving(given_up(published, reason, now, broken=broken), apart)
            return Decision(waiting, breaks, bounds.grace_seconds + waits)
        waiting = given_up(published, reason, now, broken=broken)
        return Decision(_with_shortage(waiting, ranked, bounds), breaks, waits)
    if len(published.members) > bounds.desired and bounds.floor(len(joinable)):
        return _shrink(published, joinable, bounds, now)
    return _grow(published, ranked, joinable, bounds, now)


def _still_to_leave(
    published: Rendezvous, ranked: Sequence[Participant], *, overdue: bool = False
) -> frozenset[int]:
    """Members whose processes run, where no member of the next world waits for their end.

    Members meet when the last process of each has ended, and all of a world save together. Where nobody of it
    goes on, the others have to leave first: else two Pods would train as one rank, and what the first one
    saves would not be found. Rank 0's Pod has to in any case: it may save alone. Who else leaves with its Pod
    has its own successor wait (`Participant.joinable`).

    Args:
        overdue: those that are to leave in a Pod that lives count as lost.
    """
    incarnations = published.incarnation_by_index()
    old = [p for p in ranked if p.alive and incarnations.get(p.index) == p.incarnation]
    leaving = frozenset(p.index for p in ranked if p.leaving_pod)
    if any(p.joinable for p in old):
        return leaving.intersection(published.members[:1])
    if overdue:
        return leaving
    return leaving.union(p.index for p in old if p.report and p.report.state is AgentState.RUNNING)


def _with_leaving(waiting: Rendezvous, leaving: frozenset[int]) -> Rendezvous:
    """The world with who has still to leave in `waitsFor`."""
    return waiting.model_copy(update={"waits_for": f"processes of {named(leaving)} still run"})


def leaves_dead_peers(breaks: Sequence[Break]) -> bool:
    """Whether training processes of the world are gone, so that the others cannot finish their step."""
    return any(not (b.trains_on or b.stops_in_good_order) for b in breaks)


def _nobody_is_lost(
    published: Rendezvous, departed: Collection[int], joinable: Sequence[Participant]
) -> bool:
    """Whether all the members who are to stay are there: then there is nobody to wait for."""
    return set(published.members).difference(departed) <= {p.index for p in joinable}


def _shrink(
    published: Rendezvous, joinable: Sequence[Participant], bounds: Bounds, now: datetime
) -> Decision:
    """The world of a smaller count. Its slots are all still wanted: who is not in it stands by."""
    reason = f"the world shrinks from {len(published.members)} to {counted(bounds.desired, 'worker')}"
    world = form(published, joinable, bounds, reason, now, keep=set(published.members))
    stays = frozenset(world.members)
    gone = [index for index in published.members if index not in stays]
    breaks = (Break(i, f"worker {i} stands by", departed=True, trains_on=True) for i in gone)
    return Decision(world, tuple(breaks))


def _grow(
    published: Rendezvous,
    ranked: Sequence[Participant],
    joinable: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
) -> Decision:
    """Ready newcomers join a healthy world in whole units, batched by the last call.

    A member that stops before it has begun is not joinable.
    """
    members = set(published.members)
    newcomers = [p for p in joinable if p.index not in members]
    size = bounds.floor(len(joinable))
    if size <= len(members):
        return Decision(awaiting_checkpoint(published, None))
    for_more = 0.0 if len(joinable) >= bounds.desired else last_call(newcomers, bounds)
    for_checkpoint = checkpoint_wait(published, ranked, newcomers, bounds, now)
    if (wait := max(for_more, for_checkpoint)) > 0:
        since = published.checkpoint_awaited_since or (now if for_checkpoint > 0 else None)
        return Decision(awaiting_checkpoint(published, since), look_again_seconds=wait)
    reason = f"the world grows from {len(members)} to {counted(size, 'worker')}"
    return Decision(form(published, joinable, bounds, reason, now, keep=members))


def awaiting_checkpoint(published: Rendezvous, since: datetime | None) -> Rendezvous:
    """The same world, whose agents report a checkpoint at once since then; None if nobody waits for one."""
    if published.checkpoint_awaited_since == since:
        return published
    return published.model_copy(update={"checkpoint_awaited_since": since})


def _propose_when_reforming(
    published: Rendezvous, ranked: Sequence[Participant], bounds: Bounds, now: datetime
) -> Decision:
    joinable = [p for p in ranked if p.joinable]
    reason = published.reason
    leaving = {p.index for p in ranked if p.leaving}
    complete = len(joinable) >= bounds.desired or _nobody_is_lost(published, leaving, joinable)
    can_form = bounds.floor(len(joinable)) > 0
    since = published.reforming_since or now
    wait = bounds.shrink_after_seconds - (now - since).total_seconds()
    to_leave = bounds.grace_seconds + wait
    apart = _still_to_leave(published, ranked, overdue=to_leave <= 0) if can_form else frozenset()
    if apart:
        wait_seconds = to_leave if to_leave > 0 else None  # what leaves with its Pod wakes us
        return Decision(_with_leaving(published, apart), look_again_seconds=wait_seconds)
    if complete and can_form:
        return Decision(form(published, joinable, bounds, reason, now, keep=set(published.members)))
    waiting = _with_shortage(published, ranked, bounds)
    if wait > 0:
        return Decision(waiting, look_again_seconds=wait)
    if not can_form:
        return Decision(waiting)  # fewer than the minimum: the next worker to join wakes us
    if not _has_survivors(published, ranked) and (wait := last_call(joinable, bounds)) > 0:
        return Decision(waiting, look_again_seconds=wait)  # nobody goes on: all begin anew, as at first
    reason = f"{reason}; no replacement within {bounds.shrink_after_seconds:g} s"
    return Decision(form(published, joinable, bounds, reason, now, keep=set(published.members)))


def _has_survivors(published: Rendezvous, ranked: Sequence[Participant]) -> bool:
    """Whether a Pod of the world is left, be it one that is to leave."""
    incarnations = published.incarnation_by_index()
    return any(p.alive and incarnations.get(p.index) == p.incarnation for p in ranked)


def _propose_when_forming(
    published: Rendezvous, ranked: Sequence[Participant], bounds: Bounds, now: datetime
) -> Decision:
    joinable = [p for p in ranked if p.joinable]
    waiting = _with_shortage(published.model_copy(update={"reason": ""}), ranked, bounds)
    if not bounds.floor(len(joinable)) or any(p.leaving_pod for p in ranked):
        return Decision(waiting)
    if len(joinable) >= bounds.desired:
        return Decision(form(published, joinable, bounds, "all workers are ready", now))
    wait = last_call(joinable, bounds)
    if wait > 0:
        return Decision(waiting, look_again_seconds=wait)
    reason = f"{len(joinable)} of {bounds.desired} workers are ready after the last call"
    return Decision(form(published, joinable, bounds, reason, now))


def _with_shortage(waiting: Rendezvous, ranked: Sequence[Participant], bounds: Bounds) -> Rendezvous:
    """The world with who has still to leave in `waitsFor`; or the number of ready workers, if they are too
    few."""
    if leaving := frozenset(p.index for p in ranked if p.leaving_pod):
        return _with_leaving(waiting, leaving)
    ready = sum(p.joinable for p in ranked)
    few = f"{ready} of at least {bounds.least} workers are ready" if ready else ""
    return waiting.model_copy(update={"waits_for": "" if bounds.floor(ready) else few})


def last_call(joined: Sequence[Participant], bounds: Bounds) -> float:
    """Seconds until `lastCallSeconds` have passed since the last one joined."""
    return bounds.last_call_seconds - min(p.seconds_since_joined for p in joined)


def form(
    published: Rendezvous,
    joinable: Sequence[Participant],
    bounds: Bounds,
    reason: str,
    now: datetime,
    keep: set[int] | None = None,
    *,
    broken: bool = False,
) -> Rendezvous:
    """Round + 1, of the lowest indices among the joinable, enough for a world; those in `keep` come first.

    `broken` says that processes of the published world, which was formed, are dead.
    """
    size = bounds.floor(len(joinable))
    preferred = sorted(joinable, key=lambda p: (p.index not in keep if keep else False, p.index))
    members = sorted(preferred[:size], key=lambda p: p.index)
    reports = [p.report for p in members if p.report is not None]
    return Rendezvous(
        round=published.round + 1,
        phase=RendezvousPhase.FORMED,
        members=[p.index for p in members],
        incarnations=[p.incarnation for p in members],
        world_size=sum(report.local_world_size for report in reports),
        master_address=reports[0].address,
        master_port=reports[0].store_port,
        reason=reason,
        formed_at=now,
        broken_round=published.round if broken else published.broken_round,
    )
