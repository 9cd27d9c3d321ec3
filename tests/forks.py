"""Processes that are forks of one, which has imported torch: two to four seconds of a core less for each.

A test process has one such process, and one list of what it imports: whoever sets the list last decides, so all
tests have it from here.
"""

import multiprocessing

METHOD = "forkserver"

forks = multiprocessing.get_context(METHOD)
PRELOADED = [
    *("tests.checkpoint.training", "dlr.checkpoint.reading"),
    *("tests.replicas.scripts", "dlr.replicas.replicas"),
    # The first step of an optimizer imports it, and takes a second for that.
    "torch._dynamo",
]
forks.set_forkserver_preload(PRELOADED)
