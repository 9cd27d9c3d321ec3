"""The world as desired state: who trains together in which round. Pure.

`participants.py` turns workers into participants, and `rendezvous.py` gathers them in an `Assembly`.
`propose` answers with the world that they make, `decide` in `decision.py` with the one to publish, within the
constraints (docs/contract.md, "States"). `vetting.py` has what features find out about workers. Above is job;
below is failure.
"""
