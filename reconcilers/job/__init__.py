"""The ElasticJob reconciler: see, plan, apply.

`seen.py` reads everything a look decides from, once. `plan_job` in `plan.py` is one pure function to a plan:
the status' patch, single writes, and when to look again. `reconciler.py` writes it: status first, then acts,
so that after a crash the next look plans what is left. A look has a `Basis`: what is observed, which
nothing changes, and the `DesiredJob`. `status.py` puts the status together, `events.py` has the Events that
conditions do not show, `workers.py` the writes of workers. All policies are packages below; only setup.py is
above.
"""
