"""The latencies of a real kubelet, for benchmarks."""

from hypothesis import given
from hypothesis import strategies as st

from localcluster.kubelet.latencies import ENV_LATENCIES, Latencies


@given(now=st.floats(min_value=0, max_value=1e6), period=st.floats(min_value=0.1, max_value=10))
def test_the_next_look_is_ahead_and_within_a_period(now: float, period: float) -> None:
    seconds = Latencies(relist_seconds=period).until_relist(now)
    assert -1e-6 <= seconds <= period + 1e-6


def test_there_are_none_unless_the_environment_asks_for_them(monkeypatch) -> None:
    monkeypatch.delenv(ENV_LATENCIES, raising=False)
    assert Latencies.of_environment() == Latencies()
    assert Latencies().until_relist(7.3) == 0
    monkeypatch.setenv(ENV_LATENCIES, "real")
    assert Latencies.of_environment().relist_seconds == 1.0
