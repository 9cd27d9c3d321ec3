"""Counts and resources that change: ScalePlans, requests of dlr itself, and rolling new resources out.

A ScalePlan is an input: `verdicts.py` judges it and `plan.py` makes it a request, which `writer.py` writes
into the job together with the counts; `uptake.py` merges the rest into the job's status, in the look that
sees the counts; `rolling.py` chooses whose Pod is renewed next. Above are capacity, worker, job and shards;
below are roles and world.
"""
