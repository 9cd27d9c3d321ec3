"""torch elastic's agent, driven by events: it starts, watches, stops and judges training processes.

`elastic_agent.py` is the loop over rounds. `post_mortem.py` finds which process failed by itself,
`failure_reporter.py` reports it, `vote.py` and `leaving.py` let all ranks stop after the same step, and
`process_env.py` says which environment a process gets. Above is `run.py`, which builds all of it; below are
rendezvous, membership, processes, warm, monitor and memory.
"""
