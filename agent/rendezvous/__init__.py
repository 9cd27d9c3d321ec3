"""torch elastic's rendezvous, where the published world says who meets whom.

`handler.py` is torch's RendezvousHandler, for `dlr run` and for stock `torchrun --rdzv-backend=dlr`;
`meeting.py` is how the members of a round meet in the store of rank 0's agent. Above is supervision; below
are membership, memory and connection.
"""
