"""The world as desired state: who trains together in which round. Pure.

`participants.py` turns workers into participants, `breaks.py` finds members that have left their world,
`judge` in `rendezvous.py` answers with the world that they make, and `decide` in `decision.py` with the one
to publish, within the constraints (docs/contract.md, "States"). Above: nodecheck and job; below: failure.
"""
