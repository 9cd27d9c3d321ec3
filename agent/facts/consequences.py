"""Failures that merely follow from a peer's death: another process of the worker is to blame for them."""

from __future__ import annotations

import re

from crds.failure_texts import PeerDeathTexts

follows_from_a_peer = PeerDeathTexts(re.compile).explain
