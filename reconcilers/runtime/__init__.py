"""Tools of reconcilers besides facts and decisions: writes, clock, and reports of their own failures.

`acts.py` has the single writes of a plan, and carries them out; `clock.py` is the injected time;
`reconciled.py` reports a reconciler's failures on the object; `managed_by.py` leaves other controllers' jobs
alone. Only controller/ and crds/ are below it; every package with a reconciler uses it.
"""
