"""Nodes that leave service after a verdict, and return after a later one (docs/cordon.md).

`verdicts.py` reads statements of finished checks and ended workers, `policy.py` decides, `limits.py` keeps
enough nodes in service, and `reconciler.py` writes mark, taint and conditions. `records.py` keeps each
node's last results in an annotation. One statement counts beyond its namespace only by
`reconcilers/observed/trust.py`. Below is nodecheck.
"""
