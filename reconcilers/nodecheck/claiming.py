"""Lets checks begin one at a time, so that two which begin at once see each other's claims (`claims.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from controller.cache import Cache
from controller.slices import computed
from controller.wording import counted
from crds import names
from crds.nodecheck import NodeCheck
from reconcilers.nodecheck.claim_view import ClaimView
from reconcilers.nodecheck.claims import (
    HOLD_SECONDS,
    MOST_NODES,
    Claim,
    Precedence,
    in_the_way,
    sentence_on,
    to_yield,
)
from reconcilers.nodecheck.nodes import Out
from reconcilers.nodecheck.steps import settled_nodes
from reconcilers.observed.observations import Observations
from reconcilers.runtime.kinds import NODECHECKS


@dataclass(frozen=True)
class Permit:
    """Whether a check may take its nodes."""

    contested: Mapping[str, Claim] = field(default_factory=dict)
    """The nodes that it does not get, each with the claim that is in the way."""
    nodes_of_namespace: int = 0
    """Nodes that other checks of its namespace have, if these leave no room for it."""

    @property
    def is_refused(self) -> bool:
        return bool(self.contested or self.nodes_of_namespace)

    def reason_to_wait(self, check: NodeCheck) -> str:
        """What the check waits for, in words."""
        namespace = check.metadata.namespace
        if self.contested:
            return f"waits: {sentence_on(self.contested, namespace)}"
        nodes = counted(self.nodes_of_namespace, "node")
        return (
            f"waits: other checks in the namespace {namespace} have {nodes}; "
            f"together they may have {MOST_NODES} without the label {names.LABEL_MAY_CORDON}=true"
        )

    def left_out(self, check: NodeCheck) -> dict[str, Out]:
        """The nodes that a job's check has waited for in vain, each with the reason."""
        return {
            node: Out(
                f"{claim.named_in(check.metadata.namespace)} had it for all of timeoutSeconds "
                f"({check.spec.timeout_seconds} s), so training goes on without a test of it",
                reason="Taken",
            )
            for node, claim in self.contested.items()
        }


class Claiming:
    def __init__(self, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._view = ClaimView(cache)
        self._held = Observations(cache.store(NODECHECKS), monotonic)
        self._one_at_a_time = asyncio.Lock()
        self._beginning: dict[str, Claim] = {}
        """By uid, while it is written that a check begins, which no cache shows yet."""

    async def take(
        self, check: NodeCheck, nodes: Collection[str], *, tests: bool, without_contested: bool = False
    ) -> Permit:
        """Claim nodes for a check whose begin is to be written now, unless other checks are in the way.

        Args:
            check: that is to begin, or to go on.
            nodes: all that it is to test.
            tests: it begins to test them; else its agents are still to come.
            without_contested: it has waited long enough, and begins without the nodes that it does not get.
        """
        async with self._one_at_a_time:
            beginning = dict(self._beginning)  # one that is written meanwhile is in the cache, or still here
            mine = self._view.claim_of(check, nodes)
            claims = [*await self._view.claims(mine), *beginning.values()]
            contested = await computed(sum(len(claim.wanted) for claim in claims), in_the_way, mine, claims)
            permit = Permit(contested, 0 if contested else self._nodes_beside(check, mine, beginning))
            if not permit.is_refused or without_contested:
                wanted = mine.wanted - contested.keys()
                self._beginning[mine.uid] = replace(mine, wanted=wanted, is_fixed=True, tests=tests)
            return permit

    def written(self, check: NodeCheck) -> None:
        """The begin of the check is in the cache, or was not written."""
        self._beginning.pop(check.metadata.uid, None)

    async def to_yield(self, check: NodeCheck) -> tuple[frozenset[str], float | None]:
        """The nodes that a check leaves to checks of higher precedence.

        Returns:
            the nodes, and otherwise the seconds until it has to leave some.
        """
        mine = self._view.claim_of(check, set(check.status.nodes) - settled_nodes(check.status))
        if mine.precedence is Precedence.ADMINISTRATORS:
            return frozenset(), None
        left_seconds = HOLD_SECONDS - self._held.age_seconds(mine.uid, "held")
        nodes = to_yield(mine, await self._view.claims(mine, before=mine.precedence))
        if not nodes or left_seconds <= 0:
            return nodes, None
        return frozenset(), left_seconds

    def _nodes_beside(self, check: NodeCheck, mine: Claim, beginning: Mapping[str, Claim]) -> int:
        """The nodes that other checks of the namespace have; 0 if there is room for the check beside them.

        A check that is alone in its namespace may be as large as any.
        """
        if mine.precedence is not Precedence.OTHERS or mine.is_fixed or check.spec.job_name is not None:
            return 0
        begins = {
            claim.uid: len(claim.wanted)
            for claim in beginning.values()
            if claim.namespace == mine.namespace and not claim.tests
        }
        others = {**begins, **self._view.nodes_in(mine.namespace), mine.uid: 0}
        count = sum(others.values())
        return count if count + len(mine.wanted) > MOST_NODES else 0
