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
        raise AssertionError("the cluster is asked after the end")

    reporter: Any = SimpleNamespace(latest=SimpleNamespace(state=AgentState.READY), ident=None, start=refuse)
    membership: Any = SimpleNamespace(look=refuse, next_action=refuse)
    unused: Any = None
    handler = DlrRendezvousHandler(
        unused, membership, reporter, unused, unused, unused, end=lambda: called.append("end")
    )
    assert handler.shutdown()
    assert called == ["end"] and handler.is_closed()
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()
