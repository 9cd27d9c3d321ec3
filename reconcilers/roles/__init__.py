"""Jobs with parameter servers (docs/roles.md): they have a cluster of roles instead of a world.

A job is planned as a world (`reconcilers/job/plan.py`) or as a cluster (`planner.py`). `wiring.py`
chooses; no other file asks which of the two a job is. What both need is shared as functions of
`reconcilers/job` and below: slots, accounts, conditions, suspension, ends, the policy for failures.

**Reads** what the plan of a world reads.

**Writes**

* `status.cluster`, which is to these jobs what the world is to others: which slot is which task, and a
  version, which counts up when the servers, or the Pod of one, change (`tasks.py`). The ElasticWorld shows it
  to the agents, which make the commands' variables of it (`crds/cluster.py`). `status.rendezvous` is absent.
* phase and end (`progress.py`), conditions and warnings (`conditions.py`), new Pods, as any plan of a job;
  the ElasticJob reconciler carries it out.
* the Pods of all roles, through the Worker reconciler (`pods.py`): with an agent, a name in the Service,
  and TF_CONFIG of the version that is published when they are made. Their processes start with the Pod.
* the job's headless Service, through the companion reconciler, while the job is to run.

**What holds**

* The cluster follows from the spec, the workers and the cluster before: a look after a crash publishes the
  same again. A version never goes back, and counts up with the servers alone.
* A slot keeps its task for as long as it is wanted, and who comes into its place takes it over: what commands
  learned of it when they started stays true.
* A server that loses its task stays until the chief has the version without it, or has had its time.
* A worker that is lost concerns nobody else; only the chief's command follows versions.

Without this folder and its lines in `setup.py`, the workers of such a job are to form a world, and everything
else works.
"""
