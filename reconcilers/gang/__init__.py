"""Gang scheduling: workers start together, or not at all.

`podgroup.py` has the PodGroup of a job; `reconciler.py` keeps it beside the job, and Pods wait for it at
`gate.py`. The Worker reconciler below knows gates alone; nothing but `reconcilers/setup.py` stands on this.
"""
