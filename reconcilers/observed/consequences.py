"""Failures that merely follow from a peer's death: whoever tells one was not the first to fail.

A text alone never condemns: it decides whom to blame where several processes failed, and that somebody else
is to be looked for.
"""

from __future__ import annotations

import re2

from crds.agent_report import AgentFailure
from crds.failure_texts import PeerDeathTexts

text_follows_from_a_peer = PeerDeathTexts(re2.compile).explain


def follows_from_a_peer(failure: AgentFailure) -> bool:
    """Whether a process failure is a mere consequence of another's, as far as its text tells."""
    return failure.cause is None and text_follows_from_a_peer(failure.message, failure.log_tail)
