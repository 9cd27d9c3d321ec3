"""A profile of a real process: by torch where it offers that, by py-spy where there is one, else why not."""

from __future__ import annotations

import pytest

from agent.monitor import profile
from agent.monitor.profile import PY_SPY, TORCH, ProfileError
from agent.supervision.asked import ProfileRequest
from crds.agent_report import MAX_PROFILE_BYTES


def test_what_is_too_large_to_be_told_becomes_shorter() -> None:
    asked: list[float] = []

    def record(seconds: float) -> bytes:
        asked.append(seconds)
        return bytes(int(seconds * MAX_PROFILE_BYTES))

    made = profile._fitting(5.0, TORCH, record)
    assert asked == [5.0, pytest.approx(0.7)] and len(made.data) <= MAX_PROFILE_BYTES
    assert f"5 s are more than {MAX_PROFILE_BYTES >> 10} KiB" in made.note
    with pytest.raises(ProfileError, match="still have"):
        profile._fitting(5.0, TORCH, lambda _: bytes(2 * MAX_PROFILE_BYTES))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x/3/5/", ProfileRequest(3, 5.0, "")),
        ("x/0/0.5/py-spy", ProfileRequest(0, 0.5, PY_SPY)),
        ("x/0/9999/py-spy", ProfileRequest(0, 60.0, PY_SPY)),
        ("x", None),
        ("x/a/5/", None),
    ],
)
def test_requests_are_read(text: str, read: ProfileRequest | None) -> None:
    assert ProfileRequest.parse(text) == read
