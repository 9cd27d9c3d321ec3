"""Gang scheduling: workers start together, or not at all.

`podgroup.py` has a job's PodGroup for each scheduler, and `choice.py` resolves `auto`; `reconciler.py` keeps
it beside the job, and Pods wait for it at `gate.py`. The Worker reconciler below knows only gates; nothing
but `reconcilers/setup.py` imports this.

It reads jobs, Pods of gangs and PodGroups, and writes PodGroups. Invariants:

* No Pod of a gang is created before its PodGroup exists, with the job's present minimum.
* Kubernetes' own PodGroup has the job's minimum while none of its workers runs, and 1 while one does.
* A Pod with another priority than its group's is in no group.
"""
