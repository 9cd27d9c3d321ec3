"""The world as desired state: the workers that train together in a round. Pure.

`participants.py` turns workers into participants, and `rendezvous.py` gathers them in an `Assembly`.
`propose` returns the world that they can make, and `decide` in `decision.py` the one to publish, within the
constraints (docs/contract.md, "States"). `vetting.py` is the interface to features that test workers. The
package above is job; the one below is failure.
"""
