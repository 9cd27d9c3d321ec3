"""What training came to, as rank 0 has left it with `dlr.report_result`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from crds.progress_record import MAX_RESULT, RESULT_SUFFIX


def result_of_rank_0(records: Sequence[Path], ranks: Mapping[int, int]) -> str | None:
    """Return the JSON text that it has left, or None.

    Args:
        records: the progress records of this agent's processes, by local rank.
        ranks: their global ranks, by local rank.
    """
    for local_rank, record in enumerate(records):
        if ranks.get(local_rank) == 0:
            return _read(record.with_name(f"{record.name}{RESULT_SUFFIX}"))
    return None


def _read(path: Path) -> str | None:
    """Whatever wrote it: what is too long or no JSON would have the API server refuse the whole report."""
    try:
        text = path.read_text()
        json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    return text if len(text) <= MAX_RESULT else None
