"""The Worker reconciler: one Pod for each incarnation of an ElasticWorker, and the status of that Pod.

`reconciler.py` reconciles one worker: `maker.py` creates rights, key, Lease and Pod, `silences.py` judges
heartbeats, and the pure `worker_status.py` with `ends.py` computes the new status. `companions.py` reconciles
the objects that a job needs beside its Pods. Jobs and other owners (`OtherOwner`) request workers by
ElasticWorker specs and read their status. Below are scale (resources) and failure (classes and budgets).
"""
