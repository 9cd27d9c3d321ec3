"""NodeChecks: the tested nodes, their partners, the findings, and the consequences for a job.

Read `reconciler.py` first: it is the list of steps, with its reads and one write. `scope.py` chooses the
nodes, `claims.py` and `claiming.py` order several checks of one node, `steps.py` decides when a step is over,
`status.py` writes the results, `size.py` fits them into etcd, and `pod.py` builds the Pods of checks.
`records.py` keeps the results on the Nodes, where later checks find them.

A job depends on none of this. `job_checks.py` is its `Vetting` (`reconcilers/world/vetting.py`), from the
NodeChecks that name it: untested workers, a claim while a check runs, faulty and slow nodes, and the
NodeCheck to create; `condition.py` sets the condition `NodesChecked`. Who waits for whom is in the status of
job and check alone, so a crash between two writes only delays the second. Only `reconcilers/setup.py` imports
this. Verdicts are healthcheck/'s; the consequences of finished checks are in findings.
"""
