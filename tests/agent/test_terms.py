"""On which terms `dlr exec` starts its command, and when anew."""

from __future__ import annotations

from typing import Any

import pytest

from agent.facts.world import Member, WorldView
from agent.terms import CommandSlot, may_follow, terms_of
from crds.names import LABEL_JOB
from crds.ranges import grouped, to_text


def in_cluster(version: int = 1, ps: str = "0-1", **more: Any) -> WorldView:
    tasks = {"chief": "0", "ps": ps, "worker": "0-1"}
    cluster = {"version": version, "tasks": tasks, **more}
    return WorldView.parse(
        {"metadata": {"name": "wide", "labels": {LABEL_JOB: "wide"}}, "spec": {"cluster": cluster}}
    )


def in_world(round_: int, members: list[int], phase: str = "Formed", address: str = "10.0.0.1") -> WorldView:
    world = {
        "round": round_,
        "phase": phase,
        "members": to_text(members),
        "incarnations": grouped(members, [1] * len(members)),
        "masterAddress": address,
        "masterPort": 1234,
    }
    return WorldView.parse({"metadata": {"name": "wide"}, "spec": world})


def of(type_: str, index: int = 0) -> CommandSlot:
    return CommandSlot(type_, Member(index, 1), in_cluster=True)


def key(view: WorldView, slot: CommandSlot) -> Any:
    terms = terms_of(view, slot)
    return None if terms is None else terms.key


def test_another_version_is_the_chiefs_business_and_nobody_elses() -> None:
    for slot, follows in ((of("chief"), True), (of("ps", 1), False), (of("worker"), False)):
        assert (key(in_cluster(1), slot) != key(in_cluster(2), slot)) is follows
    beside = of("evaluator")
    assert key(in_cluster(1), beside) == key(in_cluster(2), beside)


def test_a_command_that_becomes_another_task_is_started_anew_and_one_without_a_task_is_not_started() -> None:
    slot = of("ps", 1)
    assert key(in_cluster(ps="0-1"), slot) != key(in_cluster(2, ps="1"), slot)
    assert key(in_cluster(ps="2,1"), slot) == key(in_cluster(2, ps="0-1"), slot)
    assert terms_of(in_cluster(ps="0"), slot) is None
    assert terms_of(WorldView(), slot) is None


def test_without_parameter_servers_a_command_stays_whatever_becomes_of_worlds() -> None:
    slot = CommandSlot("worker", Member(0, 1))
    assert key(in_world(1, [0, 1]), slot) == key(in_world(2, [1]), slot) and terms_of(WorldView(), slot)


def test_each_round_tells_jax_where_its_coordinator_is_and_which_process_it_is() -> None:
    slot = CommandSlot("worker", Member(3, 1), each_round=True)
    terms = terms_of(in_world(7, [1, 3]), slot)
    assert terms is not None and (terms.key, terms.round) == (7, 7)
    assert terms.variables == {
        "DLR_ROUND": "7",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }
    ipv6 = terms_of(in_world(7, [1, 3], address="fd00::1"), slot)
    assert ipv6 is not None and ipv6.variables["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:1234"
    for view in (in_world(7, [1, 3], "Reforming"), in_world(8, [1, 2]), WorldView()):
        assert terms_of(view, slot) is None


@pytest.mark.parametrize(("lost", "follows"), [("", False), ("1", True)])
def test_a_chief_may_have_failed_by_a_server_that_is_lost(lost: str, follows: bool) -> None:
    view = in_cluster(lost=lost)
    started = terms_of(view, of("chief"))
    assert started is not None and may_follow(view, started, of("chief")) is follows


def test_a_process_of_a_round_may_have_failed_by_the_end_of_that() -> None:
    slot = CommandSlot("worker", Member(0, 1), each_round=True)
    started = terms_of(in_world(1, [0, 1]), slot)
    assert started is not None and not may_follow(in_world(1, [0, 1]), started, slot)
    assert may_follow(in_world(1, [0, 1], "Reforming"), started, slot)
