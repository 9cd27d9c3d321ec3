"""Looking until something is finished: how often, through outages, and how long at most."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.errors import MOST_RETRY_AFTER_SECONDS, Unavailable
from dlr.kube import following
from dlr.kube.api import NODES, Api
from dlr.kube.connection import connect
from dlr.kube.following import until_finished
from tests.cli.scripted import Answer, Clock, Script


def found_at(clock: Clock, second: float, *, away: tuple[float, float] = (0, 0)) -> Callable[[], bool]:
    """Whether that second has come; from `away[0]` to `away[1]` there is no API server."""

    def fetch() -> bool:
        if away[0] <= clock.now < away[1]:
            raise Unavailable("No API server answers.")
        return clock.now >= second

    return fetch


def test_api_server_that_goes_away_and_comes_back_is_sat_out(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [*until_finished(found_at(clock, 9, away=(3, 6)), bool)][-1]
    assert clock.slept == [1.0] * 9
    assert capsys.readouterr().err == "dlr: No API server answers. Trying again.\n" * 3


def test_api_server_that_stays_away_is_given_up(clock: Clock) -> None:
    with pytest.raises(Unavailable):
        [*until_finished(found_at(clock, 9, away=(3, 9_000)), bool)]
    assert clock.now == pytest.approx(following.OUTAGE_LIMIT_SECONDS, abs=5)


def test_an_answer_that_somebody_waits_for_is_found_soon(clock: Clock) -> None:
    for second in (0.05, 0.3, 2.0, 9.0):
        clock.now, clock.slept = 0.0, []
        assert [*until_finished(found_at(clock, second), bool, within_seconds=15)][-1]
        assert clock.now - second <= min(0.5 * second + 0.05, 1.0)
    assert len(clock.slept) < 20


def test_an_outage_lengthens_no_wait_for_an_answer(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable):
        [*until_finished(found_at(clock, 99, away=(1, 99)), bool, within_seconds=15)]
    assert clock.now <= 17
    assert 10 <= len(capsys.readouterr().err.splitlines()) <= 16


def test_what_takes_long_to_look_at_is_looked_at_less_often(clock: Clock) -> None:
    def fetch() -> bool:
        clock.now += 2.0
        return clock.now > 40

    assert [*until_finished(fetch, bool)][-1]
    assert set(clock.slept) == {8.0}


def test_a_server_that_names_a_wait_is_not_asked_sooner(clock: Clock) -> None:
    busy = Unavailable("The API server cannot answer now.", status=429, retry_after_seconds=7.0)

    def fetch() -> bool:
        if clock.now < 3:
            raise busy
        return True

    assert [*until_finished(fetch, bool)][-1]
    assert clock.slept == [7.0]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("3600", MOST_RETRY_AFTER_SECONDS), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), (None, 0.0)],
)
def test_the_wait_is_the_servers_retry_after(server: Script, header: str | None, seconds: float) -> None:
    headers = {"Retry-After": header} if header else {}
    server.answers["GET /api/v1/nodes"] = Answer(429, "too many requests", headers)
    with pytest.raises(Unavailable) as busy:
        Api(connect(None, None, None)).find(NODES)
    assert busy.value.retry_after_seconds == seconds
