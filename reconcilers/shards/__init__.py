"""Shard sets: the assignment of a data set's elements to workers (docs/shards.md).

Reads: the reports of workers that pull (`status.agent.shards` of ElasticWorkers), the job's ShardSets, and of
the job its spec, its end, the number of running workers, and the uids of its replica groups.

Writes: ShardSets (`<job>-shards-<number>`), one for each job and set, owned by the job, whose status has the
leases and the progress of the set; the job's conditions `ShardsDone` and, if too many elements failed,
`FailureTarget`; for a job with `elasticPolicy.shardScaling`, a scale request.

Invariants:

* Every element of a set waits, is leased, has failed or is done, by one status that is written with the
  resourceVersion from which it was decided: none is lost, or leased to two workers, whichever process dies.
* The number of a lease is unique in its ShardSet. A report counts only for the lease of its number and uid.
* A lease lasts as long as its worker exists, in the same incarnation, and its agent names the set. Then its
  elements wait again, except those that the last report has as done.
* The elements of a deleted ShardSet are all done once more.
* Once the leases take 12,000 characters (`lease.FULL_TEXT`), there is no other until some are done.

`sets.py` reads sets and reports, `lease.py` decides the leases, `by_shards.py` the number of workers;
`messages.py` has conditions and Events; `plan.py` plans a whole look, `reconciler.py` writes it, `wiring.py`
has its triggers. Without this folder, and its line in `reconcilers/setup.py`, workers that pull wait for
ever; other jobs lack nothing.
"""
