"""The Worker reconciler: one Pod for each incarnation of an ElasticWorker, and the status of that Pod.

`reconciler.py` looks at one worker: `maker.py` creates rights, key, Lease and Pod, `silences.py` judges
heartbeats, and the pure `worker_status.py` with `ends.py` says what the status becomes. `companions.py` has
the reconcilers of what a job needs beside its Pods. Jobs and other owners (`OtherOwner`) ask for workers by
ElasticWorker specs, and read their status. Below are scale (resources) and failure (classes and budgets).
"""
