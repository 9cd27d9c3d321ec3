"""Events do not pile up."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcluster.apiserver.database import Database
from localcluster.apiserver.expiry import last_seen, sweep
from localcluster.apiserver.store import Store
from localcluster.client.clock import timestamp

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(name: str, *, minutes_ago: int, **fields: object) -> dict:
    created = {"creationTimestamp": timestamp(NOW - timedelta(minutes=minutes_ago))}
    return {"kind": "Event", "metadata": {"namespace": "default", "name": name, **created}, **fields}


def test_events_go_an_hour_after_they_were_last_seen(tmp_path: Path) -> None:
    database = Database(tmp_path / "state")
    store = Store(database)
    store.put("events", event("old", minutes_ago=61))
    store.put("events", event("young", minutes_ago=59))
    store.put("events", event("seen again", minutes_ago=600, lastTimestamp=timestamp(NOW)))
    assert sweep(store, NOW) == 1
    assert [key[1] for key, _ in store.select("events", None)] == ["seen again", "young"]
    database.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"lastTimestamp": "2026-01-01T12:00:00Z"},
        {"eventTime": "2026-01-01T12:00:00.000000Z", "lastTimestamp": None},
        {"series": {"lastObservedTime": "2026-01-01T12:00:00.000000Z"}},
    ],
)
def test_any_of_an_events_times_counts(fields: dict) -> None:
    assert last_seen(event("one", minutes_ago=90, **fields)) == NOW
