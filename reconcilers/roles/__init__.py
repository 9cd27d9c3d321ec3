"""Jobs with parameter servers (docs/roles.md), which have a cluster of roles instead of a world.

A job is planned as a world (`reconcilers/job/plan.py`) or as a cluster (`planner.py`). `wiring.py` chooses;
no other file depends on which of the two a job is. Both share functions of `reconcilers/job` and below:
slots, accounts, conditions, suspension, ends, the policy for failures.

**Reads** the same as the plan of a world.

**Writes**

* `status.cluster`, the counterpart of the world: the task of each slot, and a version, which counts up when
  the servers, or the Pod of one, change (`tasks.py`). The ElasticWorld shows it to the agents, which build
  the commands' variables from it (`crds/cluster.py`). `status.rendezvous` is absent.
* phase and end (`progress.py`), conditions and warnings (`conditions.py`), new Pods, as any plan of a job;
  the ElasticJob reconciler carries it out.
* the Pods of all roles, through the Worker reconciler (`pods.py`): with an agent, a name in the Service,
  and TF_CONFIG of the version published at their creation. Their processes start with the Pod.
* the job's headless Service, through the companion reconciler, while the job runs.

**Invariants**

* The cluster follows from the spec, the workers and the cluster before, so a look after a crash publishes the
  same again. A version never decreases, and counts up only with changes of servers.
* A slot keeps its task for as long as it is wanted, and its successor takes it over, so that a command's
  variables stay correct after its start.
* A server that loses its task stays until the chief has the version without it, or its time is over.
* A lost worker does not affect others; only the chief's command follows versions.

Without this folder and its lines in `setup.py`, the workers of such a job would form a world, and everything
else works.
"""
