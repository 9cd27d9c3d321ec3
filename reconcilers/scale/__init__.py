"""Changes of counts and resources: requests of any origin, and the rolling update to new resources.

`writer.py` writes a request (`request.py`) into the job together with its counts, if the job allows automatic
scaling (`permission.py`); `uptake.py` merges the rest into the job's status, in the look that sees the
counts; `rolling.py` chooses the Pods to replace next. Above are worker, job, and the origins of requests:
autoscaling, scaleplan and shards; below are roles and world.
"""
