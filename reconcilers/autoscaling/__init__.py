"""Autoscaling: a job grows into free room, and begins as earlier jobs of its name ended (docs/capacity.md).

**Reads** the job, its ElasticWorkers, and for a job that begins the finished jobs of its namespace and the
Nodes. **Writes** counts, resources and how many workers are needed by a scale request into the job
(`reconcilers/scale/request.py`), as a HorizontalPodAutoscaler writes a count; and of the job's status three
fields that nobody else writes:

* `growth`: what growth remembers between two looks (`opportunity.py` decides, `growth.py` sees);
* `usage`: peaks of memory, and what each size of the world gave (`usage.py`), by which growth is judged;
* `profile`: what the job took from finished ones when it began (`profile.py`).

`plan.py` puts them together, `reconciler.py` reads and writes, `wiring.py` has what wakes it. These hold:

* Nothing is written over a request or count that the job's status has not taken up.
* What is remembered is written before the request that follows from it, both with the resourceVersion that
  they were decided from. After a crash between them, the next look asks for the same.
* Of the job's reconciler it knows what the status says, and no more: the world, its phase, the last failure.
  The job has `scaling.base` of it: workers beyond that are extra, and no world waits for them.
* A job that is to begin as earlier ones ended makes its first workers when `profile` is there, or after five
  seconds.

More memory for a worker that ran out of it is no part of this: without it, its next Pod would end likewise,
so it is in the write that decides about that Pod (`reconcilers/failure/memory.py`).

Without this folder and its lines in `setup.py`, jobs have the size that they are given, and everything else
works.
"""
