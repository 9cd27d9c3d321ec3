"""Leases of a job's shard sets: which worker works on which elements (docs/shards.md). Pure.

`lease.py` goes from the sets and the workers' reports to the sets as they will be, in one status write, so
no element is lost or leased twice. Each lease has a number that is given once; a report counts for that
number alone, so late ones do no harm. `job_shards.py` is its place in a look at a job, `by_shards.py` sizes
the job after its sets. Above is job; below is scale.
"""
