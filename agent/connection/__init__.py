"""Connections between the agents of one job, open to no one else (docs/security.md).

Each agent listens on one port for its whole life (`listener.py`). A connection proves the job's key
(`handshake.py`), then names its service: the store that agents meet through
(`store_state.py`, `store_server.py`, `store.py`),
slots of checkpoints, or the votes of a round. A bottom layer; memory, rendezvous and supervision stand on it.
"""
