"""ScalePlans: requests to change a job's counts, Pods and resources in one object, as DLRover's.

**Reads** the ScalePlans of a job, the job, its ElasticWorkers if a plan names Pods, and Nodes if one requests
resources. **Writes** the request of the newest feasible plan into the job's spec and annotation
(`reconcilers/scale/request.py`), as autoscaling does; then the verdict into each plan's status. The job's
reconciler merges the request, and does not know ScalePlans.

`plan_request.py` has the request of a plan and whether it is feasible, `verdicts.py` chooses the plan to
apply, `reconciler.py` reads and writes. Invariants:

* A plan gets one verdict, and is written into its job at most once: the job's annotation names the last one,
  also after other requests, and both writes carry the resourceVersion from which they were decided.
* Nothing is written into a job whose status has not merged the request before, so that none is lost.
* Verdicts are written from the oldest plan to the newest, so that after a crash no older plan is applied over
  a newer one.

Without this folder and its lines in `setup.py`, ScalePlans have no effect, and everything else works.
"""
