"""Checkpoints in memory. A slot holds one rank's; it is a file in memory that an agent owns and a process
fills.

`format.py` defines the layout of a slot, `slot.py` reads and writes it, `pool.py` has all slots of an agent.
`wire.py` and `server.py` move a slot between Pods, `replication.py` keeps a copy of each in another Pod, and
`resume.py` decides which checkpoint a world resumes from. Agents (`agent.checkpoints`) and training processes
(`dlr.checkpoint`) use this package; it imports neither.
"""
