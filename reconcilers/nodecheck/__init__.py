"""NodeChecks: which nodes are tested, with whom, what was found, and what a job makes of it.

Read `reconciler.py` first: it is the list of steps, with its reads and one write. `scope.py` chooses the
nodes, `claims.py` and `claiming.py` order several checks of one node, `steps.py` says when a step is over,
`evidence.py` what speaks of a node beside its tests, `status.py` what is written, `size.py` how it fits into
etcd, `record.py` what is kept with the Node. `job_checks.py` is the job's side: what its checks say of its
workers. Verdicts themselves are healthcheck/'s. Above are cordon, job and conditions; below are worker and
world.
"""
