"""One reconciler for each resource, and the pure functions that decide for them.

`setup.py` says which reconcilers there are and which change wakes which (`predicates.py`). The packages are
layers, each of which imports downwards only (pyproject.toml): cordon and job on top, then conditions and
nodecheck, worker, shards, scale, roles, goodput, world, failure, and observed and runtime at the
bottom. A package that has a reconciler calls its module `reconciler.py`.
"""
