"""Jobs with parameter servers: tasks, versions and the meaning of each role's end. Pure.

`status.cluster` is to them what the world is to others: `tasks.py` decides it in each look from the workers
alone, and its version counts up when the servers, or a server's Pod, change. Agents make commands' variables
of that one field (`crds/cluster.py`). Which role is vital or ends the job is the table in
`reconcilers/observed/roles.py`. Above are scale, worker and job.
"""
