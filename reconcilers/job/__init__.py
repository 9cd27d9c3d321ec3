"""The ElasticJob reconciler: see, plan, apply.

`seen.py` reads everything a look decides from, once. `plan_job` in `plan.py` is one pure function to a plan,
from a `Basis`: what is observed, and the job as it is wanted by now. `status.py` puts the status together, `events.py` has
the Events that conditions do not show, `workers.py` the writes of workers, and `vetter.py` how a
feature that tests workers has a say. `reconciler.py` writes the status first, then acts, so that after a
crash the next look plans what is left.
"""
