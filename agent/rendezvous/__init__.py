"""torch elastic's rendezvous, whose members come from the published ElasticWorld.

`handler.py` is torch's RendezvousHandler, for `dlr run` and for stock `torchrun --rdzv-backend=dlr`;
`meeting.py` brings the members of a round together in the store of rank 0's agent. Supervision is above;
membership, slots and connection are below.
"""
