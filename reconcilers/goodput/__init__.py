"""The account of a job's time: its states, its steps, and its timeline. Pure.

`ledger.py` determines the present state and writes `status.goodput` and `status.history`; `goodput.py` reads
steps from reports and computes the ratio (docs/metrics.md). The packages above are conditions, job,
autoscaling and metrics; below are world and failure, whose decisions it observes and never changes.
"""
