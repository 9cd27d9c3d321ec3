"""Whom an agent watches, and who is silent: by values alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import Member
from agent.peers.watch import GONE_SECONDS, REACH, SILENT_SECONDS, PeerWatch, read_address
from crds.agent_report import MAX_SILENT_PEERS

NOW = 100.0


def world(size: int) -> list[Member]:
    return [Member(index, 1) for index in range(size)]


def watch_of(size: int, rank: int) -> PeerWatch:
    """A watch whose neighbours answer."""
    watch = PeerWatch(world(size), rank)
    for neighbour in watch.watched(NOW):
        watch.answered(neighbour)
    return watch


def test_the_next_member_on_either_side_is_watched() -> None:
    assert PeerWatch(world(1), 0).watched(NOW) == []
    assert PeerWatch(world(2), 1).watched(NOW) == [0]
    assert sorted(PeerWatch(world(3), 0).watched(NOW)) == [1, 2]
    assert sorted(PeerWatch(world(100), 0).watched(NOW)) == [1, 99]


def test_a_neighbour_whose_kernel_acknowledges_nothing_is_silent_at_once() -> None:
    watch = watch_of(8, 0)
    watch.failed(1, NOW, silent_seconds=SILENT_SECONDS)
    assert watch.silent(NOW) == (Member(1, 1),)
    watch.answered(1)
    assert watch.silent(NOW + 60) == ()


def test_one_whose_host_says_that_nobody_listens_has_the_time_of_its_kubelet() -> None:
    watch = watch_of(8, 0)
    watch.failed(1, NOW, is_refused=True)
    watch.failed(1, NOW + SILENT_SECONDS, is_refused=True)
    assert watch.silent(NOW + SILENT_SECONDS) == ()
    assert watch.silent(NOW + GONE_SECONDS) == (Member(1, 1),)


def test_beyond_a_silent_neighbour_the_next_ones_are_watched_until_it_answers() -> None:
    watch = watch_of(100, 0)
    watch.failed(1, NOW, silent_seconds=SILENT_SECONDS)
    assert sorted(watch.watched(NOW)) == [1, 2, 3, REACH, 99]
    watch.failed(2, NOW + SILENT_SECONDS)
    assert watch.silent(NOW + SILENT_SECONDS) == (Member(1, 1), *(Member(i, 1) for i in range(2, REACH + 1)))
    watch.answered(1)
    assert sorted(watch.watched(NOW + 9)) == [1, 99]
    assert watch.silent(NOW + 9) == ()


@given(
    st.integers(1, 12),
    st.data(),
    st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from(["answers", "fails", "refuses"]), st.floats(0, 3)),
        max_size=40,
    ),
)
def test_nobody_is_silent_who_answered_lately_nor_the_agent_itself_and_few_are_named(
    size: int, data: st.DataObject, events: list[tuple[int, str, float]]
) -> None:
    rank = data.draw(st.integers(0, size - 1))
    watch, now, answered = PeerWatch(world(size), rank), NOW, dict[int, float]()
    for at, what, seconds in events:
        now += seconds
        watched = watch.watched(now)
        assert rank not in watched and len(watched) == len(set(watched)) <= MAX_SILENT_PEERS
        if not watched:
            continue
        peer = watched[at % len(watched)]
        if what == "answers":
            watch.answered(peer)
            answered[peer] = now
        else:
            watch.failed(peer, now, is_refused=what == "refuses")
        silent = watch.silent(now)
        assert len(silent) <= MAX_SILENT_PEERS
        for member in silent:
            assert now - answered.get(member.index, NOW) >= SILENT_SECONDS


@given(st.integers(3, 20), st.sets(st.integers(1, 19)))
def test_who_is_left_out_is_never_watched_nor_silent_and_the_next_ones_are_watched_instead(
    size: int, out: set[int]
) -> None:
    watch = PeerWatch(world(size), 0)
    watch.leave_out(out)
    watched = watch.watched(NOW)
    assert not out & set(watched)
    assert bool(watched) == bool({rank for rank in watch.reach if rank not in out})
    assert {member.index for member in watch.silent(NOW + 60)} == set(watched)


def test_an_address_has_a_host_and_a_port() -> None:
    assert read_address(b"10.0.0.7 4711") == ("10.0.0.7", 4711)
    assert read_address(b"fd00::7 1") == ("fd00::7", 1)


@given(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [b"", b"10.0.0.7", b"10.0.0.7 0", b"10.0.0.7 65536", b"a b c", b"host 4711", b"1.1.1.1 x"]
        ),
    )
)
def test_what_is_no_address_is_a_value_error(text: bytes) -> None:
    try:
        host, port = read_address(text)
    except ValueError:
        return
    assert host in text.decode() and 0 < port < 65536
