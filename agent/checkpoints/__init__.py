"""What an agent does with its slots (`agent.slots`): whom it gives them, and what it fetches and hands over.

They outlive the training processes (docs/checkpoints.md). The agents of a round agree in their meeting which
checkpoint they go on from (`agent.rendezvous.agreement`), since only then is known what the last round's
processes left. Above are rendezvous, supervision and run.
"""
