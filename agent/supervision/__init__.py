"""torch elastic's agent, driven by events: it starts, watches, stops and judges training processes.

`elastic_agent.py` is the loop over rounds. `post_mortem.py` finds which process failed by itself,
`failure_reporter.py` reports it, `vote.py` and `leaving.py` have all ranks stop after the same step, and
`process_env.py` completes the environment of a process. `run.py` builds all of it. The layers below are
rendezvous, membership, processes, warm, monitor and checkpoints.
"""
