"""What torch asks of a rendezvous handler at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from agent.rendezvous.handler import DlrRendezvousHandler
from crds.agent_report import AgentState


def test_a_handler_that_was_shut_down_is_closed_and_blocks_nobody() -> None:
    called: list[str] = []

    def refuse() -> Any:
        raise AssertionError("a session that was stopped is asked")

    session = SimpleNamespace(
        reporter=SimpleNamespace(
            latest=SimpleNamespace(state=AgentState.READY), follow_section=lambda _name, _make: None
        ),
        stop=lambda: called.append("stop"),
        begin_reports=refuse,
        await_world=refuse,
        next_action=refuse,
    )
    handler = DlrRendezvousHandler("job", session, join_timeout_seconds=1.0)  # type: ignore[arg-type]
    assert handler.shutdown()
    assert called == ["stop"] and handler.is_closed()
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()
