"""Counts and resources that change: requests, whatever makes them, and rolling new resources out.

`writer.py` writes a request (`request.py`) into the job together with the counts, as far as the job may be
scaled by itself (`permission.py`); `uptake.py` merges the rest into the job's status, in the look that sees
the counts; `rolling.py` chooses whose Pod is renewed next. Above are worker, job, and what makes requests:
autoscaling, scaleplan and shards; below are roles and world.
"""
