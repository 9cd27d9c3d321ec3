from __future__ import annotations

from typing import Any

from controller.store import Change
from reconcilers.setup import more_than_progress, more_than_the_agents_report


def raw(**agent: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "spec": {"index": 0}, "status": {"phase": "Running", "agent": agent}}


def test_steps_wake_nobody() -> None:
    change = Change(raw(state="Running", progress={"step": 1}), raw(state="Running", progress={"step": 2}))
    assert not more_than_progress(change) and not more_than_the_agents_report(change)


def test_an_agents_state_wakes_the_job_but_not_its_pods_reconciler() -> None:
    change = Change(raw(state="Ready"), raw(state="Running"))
    assert more_than_progress(change) and not more_than_the_agents_report(change)


def test_appearing_and_vanishing_wake_both() -> None:
    for change in (Change(None, raw()), Change(raw(), None)):
        assert more_than_progress(change) and more_than_the_agents_report(change)
