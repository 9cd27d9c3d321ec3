"""Shard sets: which worker works on which elements of a data set (docs/shards.md).

Reads: the reports of workers that pull (`status.agent.shards` of ElasticWorkers), the job's ShardSets, and of
the job its spec, its end, how many of its workers run, and the uids of its replica groups.

Writes: ShardSets (`<job>-shards-<number>`), one a job and set, owned by the job, whose status has the leases
and how far the set is; the job's conditions `ShardsDone` and, where more elements failed than may,
`FailureTarget`; where the job has `elasticPolicy.shardScaling`, a scale request.

What holds:

* Every element of a set waits, is leased, has failed or is done, by one status that is written with the
  resourceVersion that it was decided from: none is lost, or leased twice at a time, whoever dies.
* A lease has a number that is given once in its ShardSet. A report counts for that number and uid alone.
* A lease lasts as long as its worker is there, in the same incarnation, and its agent names the set. Then it
  goes back, without what the last report says is done.
* The elements of a ShardSet that somebody deletes are all done once more.
* Leases that take 12,000 characters are the last (`lease.FULL_TEXT`), until some of them are done.

`sets.py` reads, `lease.py` decides the leases, `by_shards.py` the count of workers, `telling.py` what people
read; `plan.py` is a whole look, `reconciler.py` writes it, `wiring.py` says what wakes it. Without this
folder, and its line in `reconcilers/setup.py`, pulling waits for ever; jobs that do not pull lack nothing.
"""
