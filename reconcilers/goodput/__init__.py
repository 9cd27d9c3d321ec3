"""The account of a job's time: in which state it was, what its steps came to, its timeline. Pure.

`ledger.py` names the present state and writes `status.goodput` and `status.history`; `goodput.py` reads steps
from reports and computes the ratio (docs/metrics.md). Above are conditions, job, autoscaling and
metrics; below are world and failure, whose decisions it observes and never changes.
"""
