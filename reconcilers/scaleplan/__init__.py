"""ScalePlans: what somebody asks of a job's counts, Pods and resources in one object, as DLRover's do.

**Reads** the ScalePlans of a job, the job, its ElasticWorkers where a plan names Pods, and Nodes where one
asks for resources. **Writes** the request of the newest plan that can be carried out into the job's spec and
annotation (`reconcilers/scale/request.py`), as autoscaling writes its own; then the verdict into each plan's
status. The job's reconciler merges the request, and knows nothing of ScalePlans.

`asked.py` says what a plan asks and whether that can be, `verdicts.py` which plan holds, `reconciler.py`
reads and writes. These hold:

* A plan gets one verdict, and is written into its job at most once: the job's annotation names the last one
  that was, also after other requests, and both writes carry the resourceVersion that they were decided from.
* Nothing is written into a job whose status has not merged the request before: none is overtaken.
* Verdicts are written from the oldest plan to the newest, so a crash leaves no older one to be applied over a
  newer one.

Without this folder and its lines in `setup.py`, ScalePlans stay as they were made, and everything else works.
"""
