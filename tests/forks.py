"""Processes that are forks of one, which has imported torch: two to four seconds of a core less for each.

The preloaded modules are one list for all of a test process.
"""

import multiprocessing

METHOD = "forkserver"

forks = multiprocessing.get_context(METHOD)
forks.set_forkserver_preload(["tests.checkpoint.training", "dlr.checkpoint.reading", "torch._dynamo"])
