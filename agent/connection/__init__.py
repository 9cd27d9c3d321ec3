"""Connections between the agents of one job, closed to everything else (docs/security.md).

Each agent listens on one port for its whole life (`listener.py`). A connection proves the job's key
(`handshake.py`), then names its service: the store that agents meet through (`store_state.py`,
`store_server.py`, `store.py`), slots of checkpoints, or the votes of a round. This is a bottom layer below
checkpoints, rendezvous and supervision.
"""
