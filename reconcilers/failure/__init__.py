"""What failures are, who was first, what they cost and what follows; and Pods that cannot be made.

A failure's way, with the module that decides at each step:

1. `observed/ending.py` reads a Pod's end from container statuses and the agent's report; that alone tells of
   a process in a Pod that lives. `observed/exit_class.py` gives either a class.
2. `rules.py`: the first of the job's failurePolicy rules that matches comes before all that follows here.
3. `incidents.py`: of all failures that broke one world, which was first (`guilt`).
4. `budgets.py`: what it costs (`free`, `shares_count`, `repeatable`), and how long the next world waits.
5. `policy.py` puts 2 to 4 together for a look at the job; `facts.py` states what of it is published.
6. `job/workers.py` makes the next incarnation of a slot (`avoids_node`, more memory by `memory.py`);
   `worker/worker_status.py` ends a Pod in which another start does not help (`needs_new_pod`).

The words in brackets are columns of the table in `meaning.py`, the one place that tells classes apart.
"""
