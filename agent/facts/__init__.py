"""Values that several parts of the agent read: worlds and failures.

`world.py` parses the job and decides an agent's next action, without torch or I/O; `failure.py` describes a
failed process. This is the bottom layer: it imports only the standard library and crds/.
"""
