"""A job's spans in Chrome's trace format, which https://ui.perfetto.dev and chrome://tracing open. Pure.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from dlr.kube.api import JSON
from reconcilers.tracing.spans import TraceSpan

PROCESS = 1
"""Process id of all tracks: they are threads of one process, the job."""


def chrome_trace(spans: Sequence[TraceSpan], now: datetime) -> JSON:
    """Return the trace, with times in microseconds since 1970, as in torch's profiler.

    Args:
        now: end of open spans.
    """
    tracks = {track: number for number, track in enumerate(dict.fromkeys(each.track for each in spans), 1)}
    title = spans[0].name if spans else ""
    events = [_metadata("process_name", 0, title)]
    events += [_metadata("thread_name", number, track) for track, number in tracks.items()]
    events += [_metadata("thread_sort_index", number, number) for number in tracks.values()]
    return {"displayTimeUnit": "ms", "traceEvents": [*events, *_events(spans, tracks, now)]}


def _metadata(name: str, track: int, value: str | int) -> JSON:
    field = "sort_index" if name.endswith("index") else "name"
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": track, "args": {field: value}}


def _events(spans: Sequence[TraceSpan], tracks: JSON, now: datetime) -> Iterable[JSON]:
    for span in spans:
        begin, end = _microseconds(span.begin), _microseconds(span.end or max(now, span.begin))
        place = {"name": span.name, "cat": "dlr", "pid": PROCESS, "tid": tracks[span.track], "ts": begin}
        how = {"ph": "X", "dur": end - begin} if end > begin else {"ph": "i", "s": "t"}
        yield place | how | {"args": dict(span.attributes)}


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1e6)
