"""In a process of its own: the collector is the whole process's."""

import subprocess
import sys

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


def test_what_survived_is_left_alone_for_an_hour():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)
