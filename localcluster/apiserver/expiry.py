"""Events are forgotten an hour after they were last seen, as in Kubernetes: nothing may grow for ever."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from localcluster.apiserver.store import Store
from localcluster.client.clock import parse_timestamp, utc_now
from localcluster.resource import JSON

log = logging.getLogger(__name__)

EVENT_LIFETIME = timedelta(hours=1)
EVENTS = "events"
SWEEP_INTERVAL_SECONDS = 60.0


def last_seen(event: JSON) -> datetime | None:
    """The latest of an Event's times; None where none can be read."""
    series = event.get("series") or {}
    metadata = event["metadata"]
    texts = [event.get(name) for name in ("lastTimestamp", "eventTime", "firstTimestamp")]
    texts += [series.get("lastObservedTime"), metadata.get("creationTimestamp")]
    seen = []
    for text in texts:
        try:
            seen.append(parse_timestamp(text or ""))
        except ValueError:
            continue
    return max(seen, default=None)


def sweep(store: Store, now: datetime) -> int:
    """Delete the Events whose time is over; their number."""
    over = [
        key
        for key, stored in store.select(EVENTS, None)
        if (seen := last_seen(stored.obj)) is None or now - seen > EVENT_LIFETIME
    ]
    for namespace, name in over:
        store.remove(EVENTS, namespace, name)
    return len(over)


async def sweep_for_ever(store: Store) -> None:
    while True:
        await asyncio.sleep(SWEEP_INTERVAL_SECONDS)
        try:
            swept = sweep(store, utc_now())
        except Exception:
            # Try again in a minute: old Events are no reason to stop serving.
            log.exception("sweeping events failed")
        else:
            if swept:
                log.info("events=%d forgotten", swept)
