"""Memory checkpoints: one rank's in each slot, a file in memory that an agent owns and a process fills.

`format.py` says what lies where; `slot.py` reads and writes a slot; `pool.py` has all slots of an agent.
`wire.py` and `server.py` move a slot between Pods, `replication.py` keeps a copy of each in another one, and
`resume.py` decides which checkpoint a world goes on from. Agents (`agent.checkpoints`) and training processes
(`dlr.checkpoint`) stand on it; it knows neither.
"""
