"""A check after repair: a node that dlr has cordoned returns by itself, once it passes tests with others.

`reconciler.py` reads the cordoned Nodes, their records and its own NodeChecks, and creates the next NodeCheck
of a node with healthy ones; `policy.py` decides when, and with which. It never writes a Node: the cordon's
reconciler lifts the cordon by the verdict, as after a check by a person.

* A node that did not pass its last check stays cordoned. Only passed tests with others bring it back; after
  an intermittent fault, thirteen of them in a row (`cordon/policy.py`).
* A fault that no test finds is tested only after a sign of repair: the machine was away and is Ready again,
  or the condition of the agent that reported the fault has recovered.
* Nothing is tested while an agent or the kubelet still reports a fault, or while a person, a drain or another
  system keeps the node out.
* The wait doubles with each check, up to a day, and without a sign of repair five failures are the last.

It does nothing if dlr does not cordon (`--cordon=report` or `off`).
"""
