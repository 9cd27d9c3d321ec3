"""NodeChecks: the nodes that are tested, their partners, the findings, and what a job makes of them.

Read `reconciler.py` first: it is the list of steps, with its reads and one write. `scope.py` chooses the
nodes, `claims.py` and `claiming.py` order several checks of one node, `steps.py` decides when a step is over,
`faulty.py` says what makes a node faulty, `status.py` states the results, `size.py` fits them into etcd,
and `record.py` keeps some with the Node. `job_checks.py` is the job's side. Verdicts themselves are
healthcheck/'s. Above are cordon, job and conditions; below are worker and world.
"""
