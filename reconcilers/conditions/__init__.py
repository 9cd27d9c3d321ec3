"""Conditions and warnings of an ElasticJob: a table with a judgement and an Event for each type. Pure.

Scripts wait for conditions (`kubectl wait`), of which there are ten at most. A warning is in the status while
something is wrong or unusual; several may be there at once. `table.py` has a row for each type, judged by the
`DesiredJob` of a reconcile: `life.py` and `scaled.py` judge conditions, features add theirs, and `pods.py`,
`reported.py` and `slow.py` judge warnings. The package above is job; below are the policies that they report.
"""
