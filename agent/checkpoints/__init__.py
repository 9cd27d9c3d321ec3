"""An agent's use of its slots (`agent.slots`): it assigns them to processes, fetches copies and hands them
over.

They outlive the training processes (docs/checkpoints.md). The agents of a round agree in their meeting on the
checkpoint to resume from (`agent.rendezvous.agreement`), since only then the last round's processes have
ended everywhere. Rendezvous, supervision and run are above.
"""
