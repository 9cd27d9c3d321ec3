"""Conditions of an ElasticJob: one table, with a judgement and an Event for each type. Pure.

`table.py` has a row for each type, `facts.py` what they are judged by, and each larger one a module with its
`judge`: data, status, reason and sentence. Conditions of roles, scale, shards and capacity are judged in those
packages. Above is job; below are nodecheck (for `NodesChecked`), worker, goodput and failure.
"""
