"""Values that several parts of the agent read: worlds and failures.

`world.py` parses the job and decides what an agent does about it (`next_action`), without torch or I/O;
`failure.py` is a failed process as data. The bottom layer: it imports the standard library and crds/ alone.
"""
