"""The ElasticJob reconciler: see, plan, apply.

`seen.py` reads all facts for one reconcile, once: an `ObservedJob`. `plan_job` in `plan.py` is one pure
function from it to a plan, by way of a `DesiredJob` (`reconcilers/look.py`). `status.py` puts the status
together, `events.py` has the Events that conditions do not show, and `workers.py` the writes of workers.
`reconciler.py` writes the status first, then acts, so that after a crash the next reconcile plans the rest.
"""
