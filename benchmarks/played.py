"""One whole check as the NodeCheck reconciler carries it out, of tests that are drawn and not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from healthcheck.diagnosis import Diagnosis
from healthcheck.fleet import Node, NodeName
from healthcheck.measurements import GroupResult, History, LocalResult, RoundResult
from healthcheck.plan import next_step
from healthcheck.settings import Settings


def played(
    nodes: Sequence[Node],
    local: Mapping[NodeName, LocalResult],
    settings: Settings,
    test: Callable[[tuple[NodeName, ...]], GroupResult],
) -> tuple[Diagnosis, tuple[RoundResult, ...]]:
    """Its verdicts, and its rounds.

    Args:
        local: what each node's own tests found.
        test: the result of one group, asked in the order in which a round has them.
    """
    rounds: tuple[RoundResult, ...] = ()
    while not isinstance(step := next_step(History(local, rounds), nodes, settings), Diagnosis):
        rounds += (RoundResult(step.number, tuple(test(group) for group in step.groups)),)
    return step, rounds
