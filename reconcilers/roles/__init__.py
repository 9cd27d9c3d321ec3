"""Jobs with parameter servers (docs/roles.md): they have a cluster of roles instead of a world.

A job is planned as a world (`reconcilers/job/plan.py`) or as a cluster (`planner.py`). `reconciler.py` chooses,
once for the plan of a job and once for the Pods of its workers; nobody else asks which of the two a job is.
What both kinds of jobs need is shared as functions of `reconcilers/job` and below: accounts, ends, suspension,
slots, the policy for failures, conditions.

`status.cluster` is to these jobs what the world is to others: which slot is which task, and a version, which
counts up when the servers, or a server's Pod, change. The ElasticWorld shows it to the agents, which make the
commands' variables of it (`crds/cluster.py`). `status.rendezvous` is absent.

What is read and written:

* `planner.py` decides, from the same `Seen` as the plan of a world, the same kind of `Plan`, which the
  ElasticJob reconciler carries out: `status.cluster`, phase, conditions, new incarnations. `tasks.py` decides the
  cluster, `progress.py` phase, end and spare workers, `conditions.py` what is stated otherwise than of a world,
  `role.py` is the table of what each role is to its job.
* `pods.py`: Pods of all roles have an agent, a name in the job's Service, and TF_CONFIG of the version that is
  published when they are made. Their processes start with the Pod.
* `ServiceReconciler` keeps the headless Service, of the job's name, while the job is to run.

What holds:

* The cluster follows from the spec, the workers and the cluster before, so two looks at the same state publish
  the same. A version never goes back, and changes with the servers alone.
* A slot keeps its task for as long as it is wanted, and who comes into its place takes it over: what others
  were told of it when they started stays true.
* A server that loses its task stays until the chief has the version without it, or its time is over.
* A worker that is lost concerns nobody but itself: no failure of one Pod makes another start anew, except that
  the chief's command follows versions.
* Without this folder and its line in `reconcilers/setup.py`, such a job is one whose workers form a world, and
  the rest is as it was.
"""
