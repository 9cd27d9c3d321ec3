"""The world as desired state: who trains together in which round. Pure.

`participants.py` turns workers into participants, `breaks.py` finds members that have left their world,
`moving.py` lets one slot take another's place, and `decide` in `rendezvous.py` answers with the next world
(docs/contract.md, "States"). `standby.py` and `resumption.py` are what people are shown. Above are
nodecheck, which puts checks before a world, and job; below is failure, for breaks.
"""
