"""The ElasticJob reconciler: see, plan, apply.

`seen.py` reads everything a look decides from, once: an `ObservedJob`. `plan_job` in `plan.py` is one pure
function from it to a plan; what it decides on the way is a `DesiredJob` (`reconcilers/look.py`). `status.py`
puts the status together, `events.py` has the Events that conditions do not show, and `workers.py` the writes
of workers. `reconciler.py` writes the status first, then acts, so that after a crash the next look plans what
is left.
"""
