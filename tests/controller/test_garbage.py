"""In a process of its own: the collector is the whole process's."""

import gc
import subprocess
import sys

import orjson
import pytest

from controller import garbage
from controller.salvage import LARGE_BYTES, parsed

SCRIPT = """
import gc, weakref
from controller.garbage import THAW_SECONDS, keep_pauses_short

class Node:
    pass

now = 0.0
keep_pauses_short(lambda: now)
kept = [{"metadata": {"labels": {}}} for _ in range(50_000)]
a, b = Node(), Node()
a.other, b.other, watched = b, a, weakref.ref(a)
gc.collect()
assert gc.get_freeze_count() > 50_000 and len(gc.get_objects()) < 1_000, "what survived is not looked at again"
uncounted = Node()
counted = weakref.ref(uncounted)
del uncounted
assert counted() is None
del a, b
gc.collect()
assert watched() is not None, "a cycle that was alive when it was frozen stays"
now = THAW_SECONDS
gc.collect()
assert watched() is None, "for an hour at most"
assert gc.get_freeze_count() > 50_000
"""


@pytest.mark.real
def test_what_survived_is_left_alone_for_an_hour():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300)


def test_no_collection_looks_at_what_a_parser_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_frozen_by_us", True)
    collected = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["generation"])

    text = orjson.dumps([{"a": []} for _ in range(50_000)])
    assert len(text) >= LARGE_BYTES
    gc.collect()
    gc.callbacks.append(note)
    try:
        made = parsed(text)
        waiting = gc.get_count()[0]
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
    assert len(made) == 50_000
    assert set(collected) <= {0} and len(collected) <= 1, "only what was young before"
    assert waiting < 500, "what it made is not counted, so it is not collected right after either"
