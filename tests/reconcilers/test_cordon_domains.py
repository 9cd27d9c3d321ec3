"""Accusations of the nodes of an NVLink domain: one finding, and once against the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.resources import NODES
from crds import names
from reconcilers.cordon.domains import MOST_NODES, TOGETHER, is_switch, room_taken, switch_of
from tests.reconcilers.build import NOW
from tests.reconcilers.test_cordon import Ward

CLIQUE = "nvidia.com/gpu.clique"


def test_most_nodes_of_a_domain_that_are_accused_together_are_its_switch() -> None:
    found = switch_of("c", NOW, [NOW, NOW + TOGETHER, None], nodes=4)
    assert str(found) == (
        "3 of the 4 nodes of domain c are accused together, so its switch is to blame, and not each of them"
    )


@pytest.mark.parametrize(
    ("domain", "others", "nodes"),
    [
        ("c", [NOW, None, None], 4),  # half of them
        ("c", [NOW, NOW + 2 * TOGETHER, None], 4),  # one long after the others
        ("c", [], 1),
        ("", [NOW], 2),
        ("zone", [NOW] * MOST_NODES, MOST_NODES + 1),  # a label that most nodes of the cluster share
    ],
)
def test_other_accusations_are_of_the_nodes(domain: str, others: list[object], nodes: int) -> None:
    assert switch_of(domain, NOW, others, nodes=nodes) is None  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=40), st.integers(1, 20))
def test_nodes_count_singly_unless_most_of_a_domain_are_cordoned(domains: list[str], size: int) -> None:
    counts = Counter(domains)
    taken = room_taken(domains, lambda _: size)
    assert len(counts) <= taken <= len(domains)
    shared = [domain for domain in counts if is_switch(counts[domain], size)]
    assert len(domains) - taken == sum(counts[domain] - 1 for domain in shared)


class Racks(Ward):
    """Four domains of four nodes."""

    async def add_racks(self) -> None:
        await self.add_nodes(*(f"{rack}{at}" for rack in "abcd" for at in range(4)))
        for rack in "abcd":
            for at in range(4):
                labels = {"metadata": {"labels": {CLIQUE: rack}}}
                await self.client.patch(NODES, f"{rack}{at}", labels)

    async def why(self, name: str) -> str:
        conditions = (await self.node(name))["status"]["conditions"]
        return next((c["message"] for c in conditions if c["type"] == names.CONDITION_UNHEALTHY), "")

    async def until_switch(self, *nodes: str) -> None:
        async def told() -> bool:
            return all(["its switch is to blame" in await self.why(node) for node in nodes])

        await self.until(f"{nodes}: the switch", told)


@pytest.fixture
async def racks() -> AsyncIterator[Racks]:
    each = Racks()
    await each.may_cordon("true")
    await each.add_racks()
    each.begin()
    yield each
    each.end()


ALL = [f"{rack}{at}" for rack in "abcd" for at in range(4)]


@pytest.mark.played
async def test_a_switch_is_cordoned_as_one_though_the_limit_is_one_node(racks: Racks) -> None:
    """16 nodes, 10%, and at least one."""
    await racks.judge(*ALL, faultyNodes=["c0", "c1", "c2", "c3"])
    await racks.until_switch("c0", "c1", "c2", "c3")
    for node in ("c0", "c3"):
        assert "4 of the 4 nodes of domain c" in await racks.why(node)
        assert "Do: look at the rack or switch" in await racks.why(node)
    for node in ("a0", "b3", "d0"):
        assert await racks.taints(node) == [] and await racks.said(node) is None, "no neighbour is blamed"
    await racks.judge(*ALL, faultyNodes=["c0", "c1", "c2", "c3", "a0"])
    await racks.until_suspected("a0", "True", "CordonHeld")


@pytest.mark.played
async def test_one_node_of_a_domain_is_one_node(racks: Racks) -> None:
    await racks.judge(*ALL, faultyNodes=["c0"])
    await racks.until_said("c0", "True", "CheckFailed")
    assert "switch" not in await racks.why("c0")
    await racks.judge(*ALL, faultyNodes=["c0", "d1"])
    await racks.until_suspected("d1", "True", "CordonHeld")


@pytest.mark.played
async def test_the_first_of_a_domain_is_told_when_the_others_follow(racks: Racks) -> None:
    await racks.judge(*ALL, faultyNodes=["c0"])
    await racks.until_said("c0", "True", "CheckFailed")
    await racks.judge("c1", "c2", faultyNodes=["c1", "c2"])
    await racks.until_switch("c0", "c1", "c2")
    assert await racks.taints("c3") == []
