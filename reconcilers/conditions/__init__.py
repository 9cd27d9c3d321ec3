"""Conditions of an ElasticJob: one table, with a judgement and an Event for each type. Pure.

`table.py` has a row for each type, `facts.py` what they are judged by, and each larger one a module with its
`judge`: data, status, reason and sentence. Above is job; below are the policies that they are about.
"""
