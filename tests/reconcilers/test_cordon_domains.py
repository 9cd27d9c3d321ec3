"""Accusations of the nodes of an NVLink domain: one finding, and once against the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.resources import NODES
from crds import names
from crds.cordon import write_acted
from crds.findings import Finding, Verdict
from reconcilers import setup
from reconcilers.cordon import wiring
from reconcilers.cordon.accusations import Accusations
from reconcilers.cordon.domains import MOST_NODES, TOGETHER, is_switch, room_taken, switch_of
from reconcilers.observed.options import CordonOptions
from tests.reconcilers.build import NOW
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.test_cordon import Ward

CLIQUE = "nvidia.com/gpu.clique"


@pytest.mark.parametrize(
    ("domain", "accused", "nodes"),
    [
        ("c", 2, 4),  # half of them
        ("c", 1, 1),
        ("", 2, 2),
        ("zone", MOST_NODES, MOST_NODES + 1),  # a label that most nodes of the cluster share
    ],
)
def test_other_accusations_are_of_the_nodes(domain: str, accused: int, nodes: int) -> None:
    assert switch_of(domain, accused, nodes) is None


DOMAINS = ("", "a", "b")
CHANGES = st.tuples(
    st.integers(0, 5), st.sampled_from((*DOMAINS, None)), st.none() | st.integers(-40, 40), st.booleans()
)
"""A node; its domain, or None if it goes; minutes at which it was accused, or not; whether it is asked for then."""


@given(st.lists(CHANGES, max_size=30))
def test_the_number_of_the_accused_is_that_of_the_nodes_whatever_changed(changes: list[Any]) -> None:
    cache = shaped_cache()
    setup.add_indexes(cache)
    wiring.add_indexes(cache)
    nodes, accusations = cache.store(NODES), cache.shared(Accusations)
    there: dict[str, tuple[str, datetime | None]] = {}
    for version, (number, domain, minutes, asks) in enumerate(changes):
        name, before = f"n{number}", nodes.get(None, f"n{number}")
        if domain is None and before is None:
            continue
        at = None if minutes is None else NOW + timedelta(minutes=minutes)
        metadata: dict[str, Any] = {"name": name, "uid": name, "resourceVersion": str(version + 1)}
        metadata |= {"creationTimestamp": "2020-01-01T00:00:00Z", "labels": {CLIQUE: domain}}
        if at is not None:
            accusation = Finding(node=name, verdict=Verdict.FAULTY, time=at)
            metadata["annotations"] = {names.ANNOTATION_CORDON: write_acted(accusation)}
        after = {"metadata": metadata}
        if domain is None:
            nodes.remove((None, name))
            there.pop(name, None)
        else:
            nodes.apply(after)
            there[name] = (domain, at)
        for node in (before, None if domain is None else after):
            if node is not None:
                accusations.outdate(node)
        for own in DOMAINS[1:] if asks else ():
            near = [
                each
                for each, (of, when) in there.items()
                if of == own and when and abs(when - NOW) <= TOGETHER
            ]
            assert accusations.together(own, NOW, but="") == len(near)
            assert accusations.together(own, NOW, but="n0") == len({*near} - {"n0"})


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
async def test_not_every_switch_is_cordoned_where_all_nodes_are_accused(racks: Racks) -> None:
    """By a driver or an image, say. Each switch counts once, and a cluster has few for its nodes."""
    racks.begin(cordon=CordonOptions(limit_percent=50))
    await racks.judge(*ALL, faultyNodes=ALL)
    await racks.settle(600)
    cordoned = [node for node in ALL if await racks.taints(node)]
    assert 4 <= len(cordoned) <= 8, cordoned
    assert {await racks.said(node, names.CONDITION_SUSPECTED) for node in ALL if node not in cordoned} == {
        ("True", "CordonHeld")
    }


@pytest.mark.played
async def test_the_first_of_a_domain_is_told_when_the_others_follow(racks: Racks) -> None:
    await racks.judge(*ALL, faultyNodes=["c0"])
    await racks.until_said("c0", "True", "CheckFailed")
    await racks.judge("c1", "c2", faultyNodes=["c1", "c2"])
    await racks.until_switch("c0", "c1", "c2")
    assert await racks.taints("c3") == []


@pytest.mark.played
@pytest.mark.parametrize("time", [None, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_a_finding_of_no_age_on_a_node_holds_no_look_up(racks: Racks, time: str | None) -> None:
    """Whoever may annotate a Node may write any time; no other time can be counted from it."""
    found = {"node": "c0", "verdict": "Faulty", "source": "default/x"} | ({"time": time} if time else {})
    cordon = {"taints": [{"key": names.TAINT_UNHEALTHY, "value": "CheckFailed", "effect": "NoSchedule"}]}
    annotations = {names.ANNOTATION_CORDON: orjson.dumps(found).decode()}
    await racks.client.patch(NODES, "c0", {"metadata": {"annotations": annotations}, "spec": cordon})
    await racks.settle()
    assert racks.process is not None and racks.process.errors == []
    await racks.judge(*ALL, faultyNodes=["c0"])
    await racks.until_said("c0", "True", "CheckFailed")
