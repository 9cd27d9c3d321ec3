"""Autoscaling: a job grows into free room, and starts with the size of earlier jobs of its name
(docs/capacity.md).

**Reads** the job, its ElasticWorkers, and for a new job the finished jobs of its namespace and the Nodes.
**Writes** counts, resources and the number of needed workers by a scale request into the job
(`reconcilers/scale/request.py`), as a HorizontalPodAutoscaler writes a count; and three fields of the job's
status that no one else writes:

* `growth`: the state of growth between two looks (`opportunity.py` decides, `growth.py` observes);
* `usage`: peaks of memory, and the speed of each world size (`usage.py`), by which growth is judged;
* `profile`: the values that a new job took from finished ones (`profile.py`).

`plan.py` combines them, `reconciler.py` reads and writes, `wiring.py` has the triggers. Invariants:

* Nothing is written over a request or count that the job's status has not taken up.
* `growth` is written before the request that follows from it, both with the resourceVersion from which they
  were decided. After a crash between them, the next look makes the same request.
* It reads only the status of the job's reconciler: the world, its phase, the last failure. That reads
  `scaling.base`: workers beyond it are extra, and no world waits for them.
* A job with a profile gets its first workers once `status.profile` is there, or after five seconds.

More memory for a worker that ran out of it is not part of this: without it, its next Pod would end in the
same way, so it is in the write that decides about that Pod (`reconcilers/failure/memory.py`).

Without this folder and its lines in `setup.py`, jobs keep the size in their specs, and everything else works.
"""
