"""The ElasticJob reconciler: see, plan, apply.

`seen.py` reads everything a look decides from, once. `plan_job` in `plan.py` is one pure function to a plan:
the status' patch, single writes, and when to look again. `reconciler.py` writes it: status first, then acts,
so that after a crash the next look plans what is left. `outcome.py` and `status.py` make the status. All
policies are packages below; only setup.py is above.
"""
