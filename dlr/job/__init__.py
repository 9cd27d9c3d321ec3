"""The description of a job from the cluster's objects: its facts, failures, findings and timeline.

Mostly pure functions: `facts.py` (the lines of a status), `findings.py` and `evidence.py` (a diagnosis),
`failures.py` (the failure to look at first), `timeline/`. `lookup.py`, `case.py`, `stacks.py`, `deletion.py`
and `logs.py` ask the API server. Below is kube; client, dashboard and commands are above.
"""
