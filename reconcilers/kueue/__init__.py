"""Kueue: a job waits in a queue, and has no more Pods than the queue grants.

https://kueue.sigs.k8s.io, 0.19. A job with the label `kueue.x-k8s.io/queue-name` owns Workloads
(`kueue.x-k8s.io/v1beta2`). The *held* one has quota, and the job's Pods are charged to it; a *slice* waits to
replace it, so that the job grows, or gets another minimum to which it can shrink.

**Reads** the job, its Workloads, and the number of its Pods; also the ClusterQueue, priority classes and
flavors. **Writes** Workloads, the job's part of their statuses, and one field of the job's status that no one
else writes: `admission`, the maximum number of worker Pods. The job's reconciler reads that field, and
nothing else of Kueue.

`workload.py` reads a Workload, `manifest.py` builds one, `sorting.py` finds the roles of a job's Workloads,
`plan.py` plans the next write, `conditions.py` computes statuses; `gate.py` holds Pods back, which `pods.py`
counts, and applies their flavors; `reconciler.py` reads and writes. `multikueue.py` is for jobs of several
clusters; `unserved.py` alone runs in a controller without `--kueue`. Invariants:

* A worker's Pod is created only while the held Workload is Admitted, and neither Evicted nor about to go; and
  never more Pods of a type than are granted.
* A Workload is released, finished or made smaller only when the Pods that it loses are gone, or are deleted
  on a lost node.
* At most one slice waits, and only for a held Workload that is Admitted; or, once it has shrunk, Evicted.
* A held Workload whose slice has quota is finished, by Kueue or by us: both are charged until then.
* A look makes one write, decided from stored objects alone. So after a crash between any two writes, the next
  look goes on; a write that is decided from a stale copy is refused, and decided again.

Without this folder and its lines in `setup.py`, the label has no effect, and everything else works.
"""
