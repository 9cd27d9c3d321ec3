"""What a failure is, without what differs from one time to the next: to know it when it comes again."""

from __future__ import annotations

import re

from crds.job_status import MAX_SIGNATURE

_VARYING = re.compile(
    r"""
    \b0x[0-9a-fA-F]+                                        # addresses
  | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
  | \b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{7,}\b                # digests
  | (?<=tmp)[A-Za-z0-9_]{6,}                                # what tempfile and mktemp make up
  | (?<=/tmp/)[^\s/'":]+
  | [-+]?\d+(?:[.:,]\d+)*(?:[eE][-+]?\d+)?                  # numbers, times, IPv4 addresses with ports
    """,
    re.VERBOSE,
)


def signature_of(message: str) -> str:
    """First line of the message, with a # for every number, address, digest and temporary name."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return _VARYING.sub("#", first)[:MAX_SIGNATURE]
