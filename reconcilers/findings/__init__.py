"""What is found out about nodes: verdicts of finished NodeChecks, faults, and the record that a Node keeps.

`finished.py` reads NodeChecks that have ended, `faulty.py` says what makes a node faulty, `actions.py` what
to do about it, `record.py` and `reference.py` what is kept with the Node. The features that test nodes
(`nodecheck`) and that take them out of service (`cordon`) stand on this, and `dlr` prints it.
"""
