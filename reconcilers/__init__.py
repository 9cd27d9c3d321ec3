"""Reconcilers, and the pure functions that decide for them.

`setup.py` registers them and the changes that wake each (`predicates.py`). The packages are
layers, each of which imports downwards only (pyproject.toml): features with a reconciler of their own on top,
then findings, job, conditions, worker, scale, goodput, world, failure, and observed and runtime at the
bottom. A package that has a reconciler calls its module `reconciler.py`.
"""
