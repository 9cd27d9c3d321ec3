"""Kueue: a job waits in a queue, and has no more Pods than are granted.

https://kueue.sigs.k8s.io, 0.19. A job with the label `kueue.x-k8s.io/queue-name` owns Workloads
(`kueue.x-k8s.io/v1beta2`). The *held* one has quota, and the job's Pods are charged to it; a *slice* waits to
replace it, by which the job grows, or resets how far it can shrink.

**Reads** the job, its Workloads, how many of its Pods there are and run; of Kueue's other objects the
ClusterQueue, priority classes and flavors. **Writes** Workloads, their statuses where those are the job's
side to write, and of the job's status one field that nobody else writes: `admission`, the most Pods of
workers that may exist. The job's reconciler knows that field, and nothing of Kueue.

`workload.py` reads a Workload, `manifest.py` writes one, `sorting.py` says which is which, `plan.py` what
comes next, `conditions.py` what stands in statuses; `gate.py` holds Pods back, of which `pods.py` counts how
many there are, and gives them what their flavors ask for; `reconciler.py` reads and writes.
`multikueue.py` has jobs of several clusters; `unserved.py` is all there is in a controller without `--kueue`.
These hold:

* A worker's Pod is made only while the held Workload is Admitted, and neither Evicted nor about to go; and
  never more of a type than are granted.
* A Workload is released, finished or made smaller only when the Pods that it loses are gone, or are deleted
  on a node that is lost.
* At most one slice waits, and only for a held Workload that is Admitted; or, once it has shrunk, Evicted.
* A held Workload whose slice has quota is finished, by Kueue or by us: both are charged until then.
* A look makes one write, decided from what is stored alone. So after a crash between any two, the next look
  goes on; a write that is decided from an old copy is refused, and decided again.

Without this folder and its lines in `setup.py`, the label means nothing, and everything else works.
"""
