"""Findings on nodes: verdicts of finished NodeChecks, faults, and the record in a Node's annotations.

`finished.py` reads NodeChecks that have ended, `faulty.py` decides which nodes are faulty, `actions.py` has
the advice, `record.py` and `reference.py` are about a Node's annotations. The features that test nodes
(`nodecheck`) and that take them out of service (`cordon`) use it, and `dlr` prints it.
"""
