"""Announced evictions: a worker is replaced before its node lets its Pod go (docs/capacity.md).

**Reads** Nodes, the job, and its ElasticWorkers on the nodes that announce evictions: a cordon, with which
every drain begins, a taint or a condition (`reconcilers/observed/announced.py`); and taints of its workers'
devices (`reconcilers/observed/device_taints.py`). **Writes** moves, by a scale request into the job as a
ScalePlan's `migratePods` (`reconcilers/scale/request.py`); and holds the job's PodDisruptionBudget for
`elasticPolicy.evictionPatienceSeconds` at most (`EvictionHold` of `reconcilers/worker/companions.py`). The
job's reconciler makes the target's Pod, swaps by vote and retires the source; it knows nothing of nodes.

`notices.py` remembers since when each node announces evictions, `plan.py` decides, `reconciler.py` reads and
writes. These hold:

* A worker is moved at most once for one announcement, wherever its target comes up: a template that tolerates
  cordons may bring it back to the same node, and there it stays.
* A move goes on as long as the node announces the eviction and the worker runs there. Afterwards only a
  target that has a node goes on.
* Evictions of a job that trains are held back before anything is announced, for a drain evicts right after
  its cordon. They are let through once the oldest announcement of the job is as old as its patience, by our
  own clock: so nothing that was announced is held longer. A new controller counts from its own start.
* dlr's own taint announces nothing: the job's checks decide on its workers. A cordon beside it does.

Without this folder and its lines in `setup.py`, workers leave when they are evicted, and everything else
works.
"""
