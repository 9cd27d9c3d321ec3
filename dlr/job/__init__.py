"""What a job is and why: facts, failures, causes and its timeline, from the cluster's objects.

Mostly pure functions: `report.py` (lines of a status), `diagnose_*.py` (evidence, cause, cost),
`failures.py` and `culprit.py` (the failure to look at first), `timeline/`. `lookup.py`, `stacks.py`,
`scaling.py` and `log_stream.py` ask the API server. Below is kube; client, dashboard and commands are above.
"""
