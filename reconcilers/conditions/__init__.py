"""Conditions of an ElasticJob, one module each: data, status, reason and sentence. Pure.

Each module reads the workers' reports and the job, and answers with the condition and the Events of its
change. `reconcilers/job/status.py` and `outcome.py` put them together. Above is job; below are nodecheck
(for `NodesChecked`), worker, goodput and failure.
"""
