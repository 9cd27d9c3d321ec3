"""Members that are no longer in their world, and why: pure functions of what workers report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crds.agent_report import AgentReport, AgentState, FailureCause
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.facts import Break
from reconcilers.observed.ending import last_failure
from reconcilers.observed.exit_class import KILL_EXIT_CODES
from reconcilers.world.participants import Participant


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
    return last_failure(report) is not None


def _how_it_failed(index: int, report: AgentReport) -> str:
    """The failure without the fault: of a hang, ranks that wait report first as often as not."""
    failure = report.failure
    if failure is not None and failure.cause is FailureCause.HANG:
        return f"worker {index} reports a hang"
    if failure is not None and failure.cause is None and failure.exit_code in KILL_EXIT_CODES:
        return f"training processes of worker {index} were killed from outside"
    return f"training processes of worker {index} failed"
