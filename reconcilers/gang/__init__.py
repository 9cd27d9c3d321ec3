"""Gang scheduling: workers start together, or not at all.

`podgroup.py` has the PodGroup of a job by its scheduler, and `choice.py` which one `auto` takes;
`reconciler.py` keeps it beside the job, and Pods wait for it at `gate.py`. The Worker reconciler below knows
gates alone; nothing but `reconcilers/setup.py` stands on this.

It reads jobs, Pods of gangs and PodGroups, and writes PodGroups. It holds that

* no Pod of a gang is made before its PodGroup is there, with the minimum that the job has now;
* Kubernetes' own PodGroup has the job's minimum while none of its workers runs, and 1 while one does;
* a Pod of another priority than its group's is in none.
"""
