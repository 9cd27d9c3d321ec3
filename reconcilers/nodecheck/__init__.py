"""NodeChecks: the nodes that are tested, their partners, the findings, and what a job makes of them.

Read `reconciler.py` first: it is the list of steps, with its reads and one write. `scope.py` chooses the
nodes, `claims.py` and `claiming.py` order several checks of one node, `steps.py` decides when a step is over,
`status.py` states the results, `size.py` fits them into etcd, and `pod.py` makes the Pods of checks.

A job knows none of it. `job_checks.py` is its `Vetting` (`reconcilers/world/vetting.py`), from the NodeChecks
that name it: workers to be tested, a claim while a check goes on, faulty and slow nodes, and the NodeCheck to
create; `condition.py` states the condition `NodesChecked`. The status of job and check alone says who waits
for whom, so a crash between two writes is a look later. Nothing but `reconcilers/setup.py` stands on this.
Verdicts themselves are healthcheck/'s; what is made of finished checks is in findings.
"""
