"""Whole lives of controllers that stand by each other, played.

Whatever stalls, dies, is deleted, lost, doubled or away:

* one: no write passes the guards of two at a time;
* silent: a leader that lives is not overtaken before its lease duration has passed since its last renewal.

Once the weather is fair:

* led: somebody leads;
* followed: a leader whose container ends is followed within 2 s, by a standby or by its own successor;
* outage: a leader goes on within 1.5 s of the API server's return, and no process has ended;
* both: a leader that dies while the server is away is followed soon after it is back;
* cut off: a leader that is silent to the server alone is followed, and ends when it sees that.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest

from controller.leader import candidacy, election
from tests.controller.leader_game import FASTEST, SLOWEST, Game, Outage
from tests.played.schedule import BY_HAND, play_seeds

pytestmark = pytest.mark.played

SCHEDULES = 1_000
PARTS = 4
WILD_SECONDS = 60.0
MISHAPS = 6
SETTLE_SECONDS = 150.0
"""Time in fair weather within which somebody leads, and is followed by nobody: what was late may take 40 s."""
FOLLOWED_SECONDS = 2.0
RETURN_SECONDS = 1.5


def settle(game: Game) -> None:
    """Wait until somebody leads, and all others stand by, and have all run for a while."""

    def is_settled() -> bool:
        leader, processes = game.leader, game.alive()
        return (
            leader is not None
            and game.schedule.now
            >= 5.0 + max(leader.leads_since, game.fair_since, *(process.runs_at for process in processes))
            and game.server.holder == leader.identity
            and len(processes) == len(game.pods)
            and all(process.holder == leader.identity for process in processes)
        )

    assert game.run_until(is_settled, SETTLE_SECONDS), "nobody leads in fair weather"


def follow_the_dead(game: Game) -> None:
    leader = game.leader
    leader.pod.end()
    if len(game.pods) == 1:
        assert game.run_until(lambda: leader.pod.process is not leader and leader.pod.process.has_begun, 5.0)
    assert game.run_until(lambda: game.leader, FOLLOWED_SECONDS), (
        "a leader whose container ended is not followed"
    )
    game.counts["a dead leader is followed"] += 1


def outlive_an_outage(game: Game) -> None:
    leader, processes = game.leader, game.alive()
    random = game.schedule.random
    suspensions, seconds = leader.suspensions, random.uniform(1.0, 60.0)
    game.server.go_away(random.choice(list(Outage)), seconds)
    game.run(seconds + 0.001)
    assert game.run_until(leader.leads, RETURN_SECONDS), "the leader does not go on after an outage"
    game.run(5.0)
    assert leader.leads() and game.alive() == processes
    game.counts["an outage suspends a leader"] += leader.suspensions > suspensions


def die_in_an_outage(game: Game) -> None:
    leader, random = game.leader, game.schedule.random
    seconds = random.uniform(5.0, 30.0)
    game.server.go_away(random.choice(list(Outage)), seconds)
    game.run(seconds / 2)
    leader.pod.end()
    game.run(seconds / 2 + 0.001)
    most_seconds = game.timing.second_attempt_seconds / SLOWEST + 3.0
    assert game.run_until(lambda: game.leader, most_seconds), (
        "a leader that died in an outage is not followed"
    )
    game.counts["a leader dies in an outage"] += 1


def cut_the_leader_off(game: Game) -> None:
    if len(game.pods) == 1:
        return
    leader, most_seconds = game.leader, game.timing.lease_duration_seconds * FASTEST / SLOWEST + 5.0
    began = game.schedule.now
    game.cut_off(leader, math.inf)

    def is_late() -> bool:
        """Counted from the last renewal, which may have been under way for long."""
        return game.schedule.now > max(began, game.server.written_at) + most_seconds

    game.run_until(lambda: game.leader not in (leader, None) or is_late(), SETTLE_SECONDS)
    assert game.leader not in (leader, None), "nobody follows a silent leader"
    assert leader.is_alive
    game.cut_off(leader, 0.0)
    assert game.run_until(lambda: not leader.is_alive, 5.0), "it goes on, though another has led"


TRIALS = (follow_the_dead, outlive_an_outage, die_in_an_outage, cut_the_leader_off)


def play(seed: int, counts: Counter[str] | None = None) -> list[str]:
    game = Game(seed)
    random = game.schedule.random
    for _ in range(MISHAPS):
        game.schedule.after(random.uniform(0.0, WILD_SECONDS), "a mishap", game.mishap)
    game.run(WILD_SECONDS)
    game.clear()
    settle(game)
    for trial in random.sample(TRIALS, 2):
        trial(game)
        settle(game)
    if counts is not None:
        counts.update(game.counts)
    return []


@pytest.mark.parametrize("part", range(PARTS))
def test_never_two_lead_and_never_is_nobody_there_for_long(part: int) -> None:
    counts: Counter[str] = Counter()
    play_seeds(lambda seed: play(seed, counts), SCHEDULES, part, PARTS)
    print(dict(counts))
    if not BY_HAND:
        assert len(counts) == 4 and min(counts.values()) > 10, "schedules that reach nothing show nothing"


def any_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_ended(pod, identity):
        statuses = pod["status"]["containerStatuses"]
        return any("terminated" in status[key] for status in statuses for key in ("state", "lastState"))

    monkeypatch.setattr(candidacy, "has_ended", has_ended)


def a_deleted_pod_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, has_ended = {}, candidacy.has_ended
    monkeypatch.setattr(
        candidacy, "has_ended", lambda pod, identity: pod is proof or has_ended(pod, identity)
    )
    take_in = candidacy.pod_answered

    def pod_answered(state, ask, pod, now):
        return take_in(state, ask, proof if pod is None else pod, now)

    monkeypatch.setattr(candidacy, "pod_answered", pod_answered)


def silence_counts_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = election.observe
    monkeypatch.setattr(election, "observe", lambda *seen, after_outage: observe(*seen))


def the_holder_counts_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    take_in = election.with_answer

    def with_answer(tenure, record, *, asked_at, now):
        found = take_in(tenure, record, asked_at=asked_at, now=now)
        late = now + tenure.timing.renew_deadline_seconds
        return (
            found if found.leads_until <= tenure.leads_until else candidacy.replace(found, leads_until=late)
        )

    monkeypatch.setattr(election, "with_answer", with_answer)


@pytest.mark.parametrize(
    ("put_in", "found"),
    [
        (any_end_counts, "two lead|overtakes"),
        (a_deleted_pod_counts, "two lead|overtakes"),
        (silence_counts_in_an_outage, "the leader does not go on"),
        (the_holder_counts_from_the_answer, "two lead"),
    ],
)
def test_a_fault_is_found(put_in, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        for seed in range(300):
            play(seed)
