"""What has happened to a NodeCheck so far, a line each, for where there is no terminal to redraw."""

from __future__ import annotations

from collections.abc import Iterator

from controller.wording import counted
from crds.nodecheck import NodeCheckPhase
from dlr.commands.node_check.view import (
    BLAMING,
    JSON,
    NETWORK,
    Look,
    compute,
    network,
    no_controller,
    outcome_text,
    reports,
    withdrawals,
)
from dlr.job.check_outcome import message, rounds_of

MOST_GROUPS_NAMED = 8


def happenings(look: Look, waited_seconds: float) -> list[str]:
    """All of them, as far as can still be seen; of two looks, the later one's new lines are the news."""
    lines = [*_beginning(look, waited_seconds), *_local_tests(look)]
    lines += [f"{node} is withdrawn: {why}" for node, why in withdrawals(look).items()]
    for round_ in rounds_of(look.status):
        lines += _finished_round(round_)
    lines += _current_round(look)
    return lines


def _beginning(look: Look, waited_seconds: float) -> Iterator[str]:
    if missing := no_controller(look, waited_seconds):
        yield missing.partition(":")[0]
    if look.phase == NodeCheckPhase.PENDING and (why := message(look.check)):
        yield f"Pending: {why}"
    if look.phase == NodeCheckPhase.RUNNING:
        reused = look.status.get("reused") or []
        lately = f" ({len(reused)} of them passed lately, and are not tested again)" if reused else ""
        yield f"Running: local tests of {counted(len(look.nodes), 'node')}{lately}"


def _local_tests(look: Look) -> Iterator[str]:
    for node, report in reports(look).items():
        outcomes = report.get("local") or []
        failed = [outcome_text(outcome) for outcome in outcomes if outcome["ending"] in BLAMING]
        figures = {
            name: value for outcome in outcomes for name, value in (outcome.get("figures") or {}).items()
        }
        if failed:
            yield f"{node}: local tests failed: {'; '.join(failed)}"
        elif outcomes:
            yield f"{node}: local tests done, {compute(figures)}".removesuffix(", ")


def _current_round(look: Look) -> Iterator[str]:
    number, groups = look.status.get("round"), look.status.get("groups") or []
    if number and groups and look.phase == NodeCheckPhase.RUNNING:
        named = "; ".join(", ".join(group["members"]) for group in groups[:MOST_GROUPS_NAMED])
        more = f"; and {len(groups) - MOST_GROUPS_NAMED} more" if len(groups) > MOST_GROUPS_NAMED else ""
        yield f"round {number} begins: {named}{more}"


def _finished_round(round_: JSON) -> Iterator[str]:
    number, groups = round_["number"], round_["groups"]
    for group in groups:
        if not group["passed"]:
            members = ", ".join(group["members"])
            yield f"round {number}: {members} failed: {group.get('message') or ''}".removesuffix(": ")
    slowest = min(
        (group["figures"][NETWORK] for group in groups if NETWORK in (group.get("figures") or {})),
        default=None,
    )
    passed = sum(group["passed"] for group in groups)
    speed = f", the slowest with {network(slowest)}" if slowest is not None else ""
    yield f"round {number}: {passed} of {len(groups)} groups passed{speed}"
