"""Shared work: workers pull the elements of a named set, each of which is done by one of them, none lost.

    for part in dlr.shards.pull("files", sorted(files)):
        with part:                 # an exception fails this part; it is tried again elsewhere
            for file in part:
                infer(file)

docs/shards.md lists what survives which failure.
"""

from dlr.shards.pulling import Part, Pull, pull
from dlr.shards.source import ShardsError

__all__ = ["Part", "Pull", "ShardsError", "pull"]
