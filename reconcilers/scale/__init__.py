"""Counts and resources that change: ScalePlans, automatic ones too, and rolling new resources out.

`plan.py` and `progress.py` say what a ScalePlan asks and what comes next, one write each; `reconciler.py`
writes counts to the job's spec; `uptake.py` takes the rest into the job's status, in the look that sees the
counts; `rolling.py` chooses whose Pod is renewed next. Above are capacity, shards, worker and job; below are
roles and world.
"""
