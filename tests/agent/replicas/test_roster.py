"""What an agent sends to the processes that follow the groups, and what it reports at once."""

from __future__ import annotations

import pytest

from agent.replicas import roster as module
from agent.replicas.facts import GroupsView, VersionGroups
from agent.replicas.roster import EndConnection, ReportNow, Roster, Send
from crds.agent_report import ReplicasReport

ROUND = 4
TOGETHER = ((0, ROUND), (3, 7))


def roster_of(count: int) -> Roster:
    """Return the roster of group 0 in a round of so many processes."""
    roster = Roster(0)
    roster.begin(ROUND, count)
    return roster


def joined(*ranks: int, groups: GroupsView | None = None) -> Roster:
    """Return one with two processes expected, of which some are ready; the key of each is its rank."""
    roster = roster_of(2)
    if groups is not None:
        roster.see(groups)
    for rank in ranks:
        roster.admit(rank)
        roster.join(rank, rank, ROUND)
    return roster


def test_a_process_that_joins_gets_the_membership_and_each_change() -> None:
    roster = roster_of(2)
    roster.see(GroupsView(1, TOGETHER))
    assert roster.join("a", 0, ROUND) == [Send("a", VersionGroups(1, TOGETHER, (0, ROUND)))]
    (sent,) = roster.see(GroupsView(2, ((3, 7),)))
    assert isinstance(sent, Send) and sent.membership.place is None
    assert roster.see(GroupsView()) == [], "the object is not there for a moment"
    assert roster.membership.version == 2


def test_the_agent_reports_ready_once_all_its_processes_have_joined() -> None:
    roster = roster_of(2)
    assert roster.join("a", 0, ROUND) == []
    assert roster.join("b", 0, ROUND) == [], "the same one, again"
    assert roster.summary() is None
    assert roster.join("c", 1, ROUND) == [ReportNow()]
    assert roster.summary() == ReplicasReport(ROUND)


def test_versions_and_steps_wait_for_the_next_report_and_all_else_is_reported_at_once() -> None:
    roster = joined(0, 1, groups=GroupsView(4, TOGETHER))
    assert roster.take(0, {"at": {"version": 1, "step": 5}}) == []
    assert roster.take(1, {"at": {"version": 1, "step": 4}}) == []
    assert roster.summary() == ReplicasReport(ROUND, 1, 4)
    assert roster.take(0, {"broken": 1}) == [ReportNow()]
    assert roster.take(1, {"broken": 1}) == []
    assert roster.take(0, {"late": {"version": 3, "groups": [2, 1]}}) == [ReportNow()]
    assert roster.summary() == ReplicasReport(ROUND, 1, 4, 1, late_version=3, late_groups=(1, 2))
    assert roster.take(0, {"late": {"version": 3, "groups": []}}) == [ReportNow()]
    assert roster.take(1, {"left_out": 4}) == [ReportNow()]
    assert roster.summary() == ReplicasReport(ROUND, 1, 4, 1, 4)


def test_a_version_of_the_future_counts_as_the_newest() -> None:
    roster = joined(0, 1, groups=GroupsView(4, TOGETHER))
    roster.take(0, {"left_out": 1 << 30})
    roster.see(GroupsView(5, TOGETHER))
    assert roster.summary() == ReplicasReport(ROUND, left_out_version=4)


def test_a_process_that_dies_before_all_have_joined_does_not_count_and_a_later_one_does() -> None:
    roster = joined(0)
    roster.leave(0)
    assert roster.join(1, 1, ROUND) == []
    assert roster.join(2, 0, ROUND) == [ReportNow()]
    roster.leave(1)
    assert roster.summary() == ReplicasReport(ROUND), "training ends, one process after the other"


def test_a_new_round_begins_from_nothing() -> None:
    roster = joined(0, 1, groups=GroupsView(3, TOGETHER))
    roster.take(0, {"at": {"version": 3, "step": 9}})
    assert sorted(roster.begin(ROUND + 1, 1), key=str) == [EndConnection(0), EndConnection(1)]
    assert roster.summary() is None
    assert roster.take(0, {"broken": 3}) == [], "a process of the round before"
    for late in (lambda: roster.join(5, 0, ROUND), lambda: roster.look(ROUND)):
        with pytest.raises(ConnectionError):
            late()
    assert roster.look(ROUND + 1) == VersionGroups(3, TOGETHER, (0, ROUND + 1))
    assert roster.join(6, 0, ROUND + 1)[-1] == ReportNow()


def test_a_store_is_that_of_the_newest_version_and_ends_with_it() -> None:
    groups = GroupsView(1, TOGETHER, "10.0.0.1", 7)
    roster = joined(0, 1, groups=groups)
    roster.admit("store")
    assert roster.open_store("store", 1) == groups and roster.is_newest(1)
    assert roster.open_store("other", 2) is None
    assert EndConnection("store") in roster.see(GroupsView(2))
    assert not roster.is_newest(1)
    assert roster.open_store("store", 2) is None, "nobody takes part in it"
    roster.leave("store")
    assert EndConnection("store") not in roster.see(GroupsView(3))


def test_more_connections_than_there_may_be_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    roster = roster_of(1)
    assert [roster.admit(key) for key in "abc"] == [True, True, False]
    roster.leave("a")
    assert roster.admit("c")
    assert sorted(roster.close(), key=str) == [EndConnection("b"), EndConnection("c")]
    assert not roster.admit("d")
