"""Work that is pulled: elements of a named set, each done by one of the job's workers, none lost.

    for part in dlr.shards.pull("files", sorted(files)):
        with part:                 # an exception fails this part; it is tried again elsewhere
            for file in part:
                infer(file)

docs/shards.md says what is kept through which failure.
"""

from dlr.shards.pulling import Part, Pull, pull
from dlr.shards.source import ShardsError

__all__ = ["Part", "Pull", "ShardsError", "pull"]
