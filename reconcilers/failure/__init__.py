"""Failures, their first cause, cost and consequences; and Pods that cannot be made.

The steps from a failure to its consequences, with the module that decides each:

1. `observed/ending.py` reads a Pod's end from container statuses and the agent's report. A process that fails
   in a running Pod is only in the report. `observed/exit_class.py` gives either a class.
2. `rules.py`: the first matching rule of the job's failurePolicy overrides the next steps.
3. `incidents.py`: the first of all failures that broke one world (`guilt`).
4. `budgets.py`: the cost of a failure (`free`, `shares_count`, `repeatable`), and the next world's wait.
5. `policy.py` combines 2 to 4 in one reconcile of the job: what counts now (`facts.py` has the published
   results), which Pods that live are replaced (`renewals.py`), and whether the job ends (`endings.py`).
6. `job/workers.py` makes the next incarnation of a slot (`avoids_node`, more memory by `memory.py`);
   `worker/worker_status.py` ends a Pod in which another start does not help (`needs_new_pod`).

The words in brackets are columns of the table in `meaning.py`, the only place that distinguishes classes.
"""
