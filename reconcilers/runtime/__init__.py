"""What a reconciler needs besides facts and decisions: writes, clock, and reports of its own failures.

`acts.py` has the single writes that a plan is made of, and carries them out; `clock.py` is the injected
time; `reconciled.py` puts failures of our own on the object; `managed_by.py` leaves other controllers' jobs
alone. Below it are controller/ and crds/ alone; every package with a reconciler stands on it.
"""
