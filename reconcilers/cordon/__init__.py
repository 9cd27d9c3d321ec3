"""Cordons: nodes leave service after a verdict, and return after a later one (docs/cordon.md).

`findings.py` reads the findings of finished checks and ended workers, `policy.py` decides, `domains.py` has
the limit where a switch is to blame, `statement.py` words the conditions, and `reconciler.py` writes mark,
taint and conditions. A finding counts beyond its namespace only by `reconcilers/observed/trust.py`.
"""
