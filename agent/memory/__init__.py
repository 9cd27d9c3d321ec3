"""Checkpoints in memory files that the agent owns: they outlive the training processes (docs/checkpoints.md).

`checkpoints.py` says who may use which slot of the `pool.py`; `slot.py` and `layout.py` are the format,
whole at any moment. The agents of a round agree in their meeting which checkpoint they go on from
(`agreement.py`; `resume.py` decides it, pure), since only then is known what the last round's processes
left. `wire.py`, `server.py` and `fetch.py` move a slot between agents; `replication.py` keeps one at a peer
that `peers.py` chooses on another node and rack. Above are rendezvous, supervision and run.
"""
