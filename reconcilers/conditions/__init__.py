"""Conditions and warnings of an ElasticJob: a table with a judgement and an Event for each type. Pure.

Conditions are what scripts wait for (`kubectl wait`): ten at most. A warning is in the status for as long as
something is wrong or odd, and several may be there at once. `table.py` has a row for each type, which is
judged by the `DesiredJob` of a look: `life.py` and `scaled.py` judge conditions, features add theirs, and
`pods.py`, `reported.py` and `slow.py` judge warnings. Above is job; below are the policies that they
are about.
"""
