from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.environment import Environment
from agent.facts.world import WorldView
from agent.report.elasticworker import topology_of_pod
from agent.slots.replication import peers_of, ring_of, shortened

PLACES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("rst"), st.sampled_from("12345678")), max_size=40
)


def peers(places: list[tuple[str, ...]]) -> list[int]:
    ring = ring_of(places)
    found = peers_of(range(len(places)) if ring is None else ring)
    assert found is not None
    return list(found)


@given(PLACES.filter(lambda places: len(places) > 1))
def test_each_holds_for_one_other_and_as_few_as_possible_share_a_switch_a_rack_or_a_node(
    places: list[tuple[str, ...]],
) -> None:
    found, count = peers(places), len(places)
    assert sorted(found) == list(range(count))
    assert all(peer != agent for agent, peer in enumerate(found))
    for level in (1, 2, 3):
        for shared, size in Counter(place[:level] for place in places).items():
            together = sum(
                places[agent][:level] == shared == places[peer][:level] for agent, peer in enumerate(found)
            )
            assert together == max(0, 2 * size - count), "of so many, no fewer can be with one another"


@given(st.integers(2, 200))
def test_where_nothing_is_known_it_is_half_a_world_away(count: int) -> None:
    expected = [(agent + count // 2) % count for agent in range(count)]
    assert peers([()] * count) == expected
    assert peers([("", f"node-{agent}") for agent in range(count)]) == expected


def test_what_a_node_shares_is_read_from_the_status_of_this_pods_worker() -> None:
    me = Environment("job", "default", "job-worker-0-1", 0, 1, "uid", "10.0.0.2")
    status: dict[str, Any] = {}
    api: Any = SimpleNamespace(merge_patch=lambda path, patch: {"status": status})
    assert topology_of_pod(api, me) is None
    status |= {"podUid": "another Pod's", "topology": ["r1", "s1"]}
    assert topology_of_pod(api, me) is None
    status["podUid"] = me.pod_uid
    assert topology_of_pod(api, me) == ["r1", "s1"]
    assert WorldView.parse({"spec": {"topologyLevels": 2}}).topology_levels == 2


def test_alone_there_is_no_peer() -> None:
    assert peers_of([0]) is None
    assert peers_of([]) is None


def test_a_place_is_told_in_a_few_characters() -> None:
    assert [len(part) for part in shortened(("", "r" * 63, "n" * 253))] == [0, 6, 6]
    assert shortened(("r1", "n1")) != shortened(("r1", "n2"))
