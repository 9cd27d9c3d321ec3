"""World forming: the workers that train together (docs/contract.md, "States"). Pure.

`propose` considers participants and bounds alone; `decide` (decision.py) adds vetting, slow nodes and waits.
Worlds only shrink here (`_propose_when_reforming`, `_propose_when_formed`, `_shrink`), except for slow
members, which decision.py leaves out. A standby worker needs no step of its own: it is one of those that can
join, and `form` prefers present members and then the lowest indices.

Ranks follow the slots' indices, so they are stable and rank 0 is always the lowest slot; with domains, they
follow the domains first (`domains.py`). A round that was published as Formed keeps its member list for ever:
no decision changes it, and the write carries the resourceVersion of the decision.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from controller.wording import counted
from crds.agent_report import AgentReport, AgentState, FailureCause
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.failure.facts import Break
from reconcilers.observed.ending import reported_failure
from reconcilers.observed.exit_class import KILL_EXIT_CODES
from reconcilers.observed.slots import named
from reconcilers.world.domains import chosen, in_rank_order, in_whole_units, lost_by_domain
from reconcilers.world.participants import Bounds, Participant


def broken_members(published: Rendezvous, participants: Sequence[Participant]) -> tuple[Break, ...]:
    """Return the members that are no longer in the formed world, and why."""
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
    """Return the break by a worker that succeeded in an earlier round than the world's; None otherwise."""
    if report is None or report.observed_round >= round_:
        return None
    return Break(index, f"worker {index} had finished in round {report.observed_round}, and has ended")


def _has_failed(report: AgentReport) -> bool:
    """Whether its processes failed before it left, as torch's own launcher reports when it leaves."""
    return reported_failure(report) is not None


def _how_it_failed(index: int, report: AgentReport) -> str:
    """Return a clause about the failure without a cause: in a hang, a waiting rank often reports first."""
    failure = report.failure
    if failure is not None and failure.cause is FailureCause.HANG:
        return f"worker {index} reports a hang"
    if failure is not None and failure.cause is FailureCause.TIMED_OUT:
        return f"a collective of worker {index} timed out"
    if failure is not None and failure.cause is None and failure.exit_code in KILL_EXIT_CODES:
        return f"training processes of worker {index} were killed from outside"
    return f"training processes of worker {index} failed"


NAMED_BREAKS = 3
"""Most breaks named in the reason; the others are counted, so that a lost rack does not fill the status."""
WORDS = ("reason", "waits_for", "resume")
"""Fields of a world that are only for people to read."""
MAX_BREAKS = 184
"""Most characters for breaks in the reason, within `MAX_WORLD_REASON`."""


@dataclass(frozen=True)
class Decision:
    """The world to publish, and what follows for the present one."""

    rendezvous: Rendezvous
    breaks: tuple[Break, ...] = ()
    """Reasons why the published world had to end; only in the decision that ends it."""
    look_again_seconds: float | None = None
    left_out: frozenset[int] = frozenset()
    """Workers on slow nodes that the world leaves out."""
    to_vet: tuple[int, ...] = ()
    """Workers to test now, before the next world."""

    @property
    def broken(self) -> bool:
        """Whether the world cannot go on; one that only ends for the next could."""
        return any(not b.trains_on for b in self.breaks)

    @property
    def failed(self) -> bool:
        """Whether a failure broke it: members that stop in good order only leave, as when it shrinks."""
        return leaves_dead_peers(self.breaks)


@dataclass(frozen=True)
class Assembly:
    """The participants that may make the next world, with cached facts about them."""

    published: Rendezvous
    participants: Sequence[Participant]
    """Participants that count, by index; of a moving slot only source or target (`settle`)."""
    bounds: Bounds
    now: datetime

    @cached_property
    def members(self) -> frozenset[int]:
        """Members of the published world."""
        return frozenset(self.published.members)

    @cached_property
    def joinable(self) -> Sequence[Participant]:
        return [p for p in self.participants if p.joinable]

    @cached_property
    def ready(self) -> int:
        """Number of workers that can join, without those whose domain has too few for a unit."""
        return in_whole_units(self.joinable, self.bounds.node_unit)

    @cached_property
    def breaks(self) -> tuple[Break, ...]:
        return broken_members(self.published, self.participants)

    @cached_property
    def is_ending(self) -> bool:
        """Whether a member of a formed world has finished: then training is not disturbed any more."""
        round_ = self.published.round
        reports = ((p, p.report) for p in self.participants if p.index in self.members)
        return any(
            p.succeeded or (r is not None and r.state is AgentState.SUCCEEDED and r.observed_round == round_)
            for p, r in reports
        )

    @property
    def is_formed(self) -> bool:
        return self.published.phase is RendezvousPhase.FORMED

    @property
    def size(self) -> int:
        """The largest allowed size of a world of those that can join; 0 if they are too few."""
        return self.bounds.floor(self.ready)

    def is_complete(self, departed: Collection[int]) -> bool:
        """Whether there is no worker to wait for: enough are ready, or all members that stay."""
        stay = self.members.difference(departed)
        return self.ready >= self.bounds.desired or stay <= {p.index for p in self.joinable}


def propose(there: Assembly) -> Decision:
    """Propose the next world of the present participants; the published one if nothing changes."""
    if there.is_formed:
        return _propose_when_formed(there)
    if there.published.phase is RendezvousPhase.REFORMING:
        return _propose_when_reforming(there)
    return _propose_when_forming(there)


def dissolve(published: Rendezvous, reason: str) -> Rendezvous:
    """Return the world of a suspended job: no members, but the same round.

    The address stays, since processes of other replica groups meet there while this job's leave.
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
    """Return the last world of a job that has ended, without waits and questions about hangs."""
    update = {"hang_since": None, "checkpoint_awaited_since": None, "waits_for": ""}
    return published.model_copy(update=update)


def reforming(published: Rendezvous, reason: str, now: datetime, *, broken: bool = False) -> Rendezvous:
    """Return the world as Reforming from now on; `broken` if processes of it are dead."""
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


def checkpoint_wait(there: Assembly, newcomers: Sequence[Participant]) -> float:
    """Return the seconds for which ready newcomers still wait for the world to save a checkpoint.

    A check of their nodes comes after this wait. When they join again after the check, they do not wait
    twice.
    """
    limit_seconds = there.bounds.grow_at_checkpoint_seconds
    if not limit_seconds:
        return 0.0
    joined = [p.seconds_since_joined for p in newcomers]
    saved = [p.seconds_since_checkpoint for p in there.participants if p.index in there.members]
    if any(seconds is not None and seconds < min(joined) for seconds in saved):
        return 0.0
    since = there.published.checkpoint_awaited_since
    waited = max(joined) if since is None else max(*joined, (there.now - since).total_seconds())
    return max(limit_seconds - waited, 0.0)


def _propose_when_formed(there: Assembly) -> Decision:
    published, bounds, breaks = there.published, there.bounds, there.breaks
    if all(b.trains_on for b in breaks):
        too_few = bounds.floor(bounds.desired) and not there.size
        if there.is_ending or (breaks and too_few):
            return Decision(published)  # members that should leave have to stay for now
    if breaks:
        return _propose_when_broken(there)
    if len(published.members) > bounds.desired and there.size:
        return _shrink(there)
    return _grow(there)


def _propose_when_broken(there: Assembly) -> Decision:
    breaks, broken, waits = there.breaks, leaves_dead_peers(there.breaks), there.bounds.shrink_after_seconds
    shown = sorted(breaks, key=lambda b: b.took_part)[:NAMED_BREAKS]
    reason = shortened("; ".join(b.reason for b in shown), MAX_BREAKS)
    if len(breaks) > NAMED_BREAKS:
        reason += f"; and {len(breaks) - NAMED_BREAKS} more"
    waiting = reforming(there.published, reason, there.now, broken=broken)
    if not there.size or not there.is_complete({b.index for b in breaks if b.departed}):
        return Decision(_with_shortage(waiting, there), breaks, waits)
    if apart := _still_to_leave(there):
        return Decision(_with_leaving(waiting, apart), breaks, there.bounds.grace_seconds + waits)
    return Decision(form(there, reason, broken=broken), breaks)


def _still_to_leave(there: Assembly, *, overdue: bool = False) -> frozenset[int]:
    """Return members whose processes have to leave before the next world is formed.

    Members that go on meet only when their last processes have ended, and all of a world save together. If no
    member goes on, the old processes have to leave first: otherwise two Pods would train as one rank, and the
    checkpoint of the first would not be found. Rank 0's Pod has to leave first in any case, since it may save
    alone. For other leaving Pods, their own successor waits (`Participant.joinable`).

    Args:
        overdue: whether members that should leave in a living Pod count as lost.
    """
    old, leaving = _survivors(there), frozenset(p.index for p in there.participants if p.leaving_pod)
    if any(p.joinable for p in old):
        return leaving.intersection(there.published.members[:1])
    if overdue:
        return leaving
    return leaving.union(p.index for p in old if p.report and p.report.state is AgentState.RUNNING)


def _with_leaving(waiting: Rendezvous, leaving: frozenset[int]) -> Rendezvous:
    """Return the world with the members that still have to leave in `waitsFor`."""
    return waiting.model_copy(update={"waits_for": f"processes of {named(leaving)} still run"})


def leaves_dead_peers(breaks: Sequence[Break]) -> bool:
    """Whether training processes of the world are gone, so that the others cannot finish their step."""
    return any(not (b.trains_on or b.stops_in_good_order) for b in breaks)


def _shrink(there: Assembly) -> Decision:
    """Decide on a smaller world. All slots are still wanted, so workers that are not in it stand by."""
    members = there.published.members
    reason = f"the world shrinks from {len(members)} to {counted(there.bounds.desired, 'worker')}"
    world = form(there, reason)
    stays = frozenset(world.members)
    gone = [index for index in members if index not in stays]
    breaks = (Break(i, f"worker {i} stands by", departed=True, trains_on=True) for i in gone)
    return Decision(world, tuple(breaks))


def _grow(there: Assembly) -> Decision:
    """Let ready newcomers join a healthy world in whole units, batched by the last call.

    A member that stops before it has begun is not joinable.
    """
    published, joinable, members = there.published, there.joinable, there.members
    newcomers = [p for p in joinable if p.index not in members]
    if there.size <= len(members):
        return Decision(awaiting_checkpoint(published, None))
    for_more = 0.0 if there.ready >= there.bounds.desired else last_call(newcomers, there.bounds)
    for_checkpoint = checkpoint_wait(there, newcomers)
    if (wait := max(for_more, for_checkpoint)) > 0:
        since = published.checkpoint_awaited_since or (there.now if for_checkpoint > 0 else None)
        return Decision(awaiting_checkpoint(published, since), look_again_seconds=wait)
    return Decision(form(there, f"the world grows from {len(members)} to {counted(there.size, 'worker')}"))


def awaiting_checkpoint(published: Rendezvous, since: datetime | None) -> Rendezvous:
    """Return the world whose agents report checkpoints at once since that time; None for no such wait."""
    if published.checkpoint_awaited_since == since:
        return published
    return published.model_copy(update={"checkpoint_awaited_since": since})


def _propose_when_reforming(there: Assembly) -> Decision:
    published, bounds, can_form = there.published, there.bounds, there.size > 0
    since = published.reforming_since or there.now
    wait = bounds.shrink_after_seconds - (there.now - since).total_seconds()
    to_leave = bounds.grace_seconds + wait
    apart = _still_to_leave(there, overdue=to_leave <= 0) if can_form else frozenset()
    if apart:
        wait_seconds = to_leave if to_leave > 0 else None  # the end of a leaving Pod wakes us
        return Decision(_with_leaving(published, apart), look_again_seconds=wait_seconds)
    if can_form and there.is_complete({p.index for p in there.participants if p.leaving}):
        return Decision(form(there, published.reason))
    waiting = _with_shortage(published, there)
    if wait > 0:
        return Decision(waiting, look_again_seconds=wait)
    if not can_form:
        return Decision(waiting)  # fewer than the minimum: the next worker to join wakes us
    if not _survivors(there) and (wait := last_call(there.joinable, bounds)) > 0:
        return Decision(waiting, look_again_seconds=wait)  # no member goes on: as at the first start
    late = f"no replacement within {bounds.shrink_after_seconds:g} s"
    return Decision(form(there, f"{published.reason}; {late}"))


def _survivors(there: Assembly) -> list[Participant]:
    """Return the participants whose Pods are of the world, even if they have to leave."""
    incarnations = there.published.incarnation_by_index()
    return [p for p in there.participants if p.alive and incarnations.get(p.index) == p.incarnation]


def _propose_when_forming(there: Assembly) -> Decision:
    bounds, ready = there.bounds, there.ready
    waiting = _with_shortage(there.published.model_copy(update={"reason": ""}), there)
    if not there.size or any(p.leaving_pod for p in there.participants):
        return Decision(waiting)
    if ready >= bounds.desired:
        return Decision(form(there, "all workers are ready"))
    if (wait := last_call(there.joinable, bounds)) > 0:
        return Decision(waiting, look_again_seconds=wait)
    return Decision(form(there, f"{ready} of {bounds.desired} workers are ready after the last call"))


def _with_shortage(waiting: Rendezvous, there: Assembly) -> Rendezvous:
    """Return the world with `waitsFor` set: the members that still have to leave, or the number of ready
    workers, if there are too few, or too few in one domain."""
    if leaving := frozenset(p.index for p in there.participants if p.leaving_pod):
        return _with_leaving(waiting, leaving)
    ready, bounds = len(there.joinable), there.bounds
    few = f"{ready} of at least {bounds.least} workers are ready" if ready else ""
    if ready > there.ready:
        few += f", {there.ready} of them in domains that have {bounds.node_unit}"
    return waiting.model_copy(update={"waits_for": "" if there.size else few})


def last_call(joined: Sequence[Participant], bounds: Bounds) -> float:
    """Return the seconds until `lastCallSeconds` have passed since the last one joined."""
    return bounds.last_call_seconds - min(p.seconds_since_joined for p in joined)


def form(there: Assembly, reason: str, *, broken: bool = False) -> Rendezvous:
    """Return the world of the next round: present members come first, a standby worker replaces one of its
    own domain (`domains.py`), and then the lowest indices that can join follow.

    `broken` says that processes of the published world, which was formed, are dead.
    """
    published, present = there.published, there.members
    lost = lost_by_domain(there.participants, present)
    members = chosen(there.joinable, there.size, there.bounds.node_unit, present, lost)
    members = in_rank_order(members, published)
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
        formed_at=there.now,
        broken_round=published.round if broken else published.broken_round,
    )
