"""Announced evictions: a worker is replaced before its Pod is evicted (docs/capacity.md).

**Reads** Nodes, the job, and its ElasticWorkers on the nodes that announce evictions: a cordon, with which
every drain begins, a taint or a condition (`reconcilers/observed/announced.py`); and taints of its workers'
devices (`reconcilers/observed/device_taints.py`). **Writes** moves, by a scale request into the job like a
ScalePlan's `migratePods` (`reconcilers/scale/request.py`); and holds the job's PodDisruptionBudget for
`elasticPolicy.evictionPatienceSeconds` at most (`EvictionHold` of `reconcilers/worker/companions.py`). The
job's reconciler creates the target's Pod, swaps by vote and retires the source; it does not look at nodes.

`notices.py` remembers the time of each node's announcement, `plan.py` decides, `reconciler.py` reads and
writes. Invariants:

* A worker is moved at most once for one announcement, wherever its target comes up: a template that tolerates
  cordons may bring it back to the same node, where it stays.
* A move goes on as long as the node announces the eviction and the worker runs there. Afterwards only a
  target with a node goes on.
* Evictions of a training job are held back before any announcement, since a drain evicts right after its
  cordon. They are no longer held once the job's oldest announcement is as old as its patience, by our own
  clock, which a new controller starts again.
* dlr's own taint announces nothing, since the job's checks decide on its workers. A cordon beside it does.

Without this folder and its lines in `setup.py`, workers leave when they are evicted, and everything else
works.
"""
