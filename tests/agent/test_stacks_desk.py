"""Each request for stacks is answered once, by agents that were there when it came."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.supervision import stacks_desk
from agent.supervision.stacks_desk import REPORTED_SECONDS, StacksDesk
from crds.agent_report import MAX_STACKS, RankStack
from tests.cli.scripted import Clock


def thread(target: Callable[..., None], args: tuple[Any, ...], **_: object) -> Any:
    """A thread that has ended as soon as it is started."""
    return SimpleNamespace(start=lambda: target(*args), is_alive=lambda: False)


def test_each_new_request_is_answered_once_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reported = Clock(), list[str]()
    monkeypatch.setattr(stacks_desk, "time", clock)
    monkeypatch.setattr(stacks_desk, "threading", SimpleNamespace(Thread=thread))
    guard: Any = SimpleNamespace(stacks_of=lambda _: lambda: [RankStack(4)] * (MAX_STACKS + 1))
    processes: Any = SimpleNamespace(alive=dict)
    desk = StacksDesk(guard, answered="of somebody before")
    for request in ("", "of somebody before", "mine", "mine"):
        desk.look(request, processes, lambda request=request: reported.append(request))  # type: ignore[misc]
    assert reported == ["mine"]
    answer = desk.to_status()
    assert answer is not None and (answer.request, len(answer.stacks)) == ("mine", MAX_STACKS)
    clock.sleep(REPORTED_SECONDS)
    assert desk.to_status() is None
    desk.look("another", processes, lambda: reported.append("another"))
    assert reported == ["mine", "another"]
