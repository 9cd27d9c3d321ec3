"""A check after repair: a node that dlr has cordoned comes back by itself, once it passes with others.

`reconciler.py` reads the cordoned Nodes, their records and its own NodeChecks, and makes the next NodeCheck
of a node and of healthy ones beside it; `policy.py` decides when, and with whom. It never writes a Node: the
cordon is lifted by the cordon's reconciler, by the verdict, as after a check that a person makes.

* A node whose last check did not pass it stays cordoned. Only a check in which it passed tests with others
  brings it back; of a fault that comes and goes, thirteen of them in a row (`cordon/policy.py`).
* A fault that no test would see is tested only after a sign of repair: the machine was away and is Ready
  again, or the condition of the agent that reported it turned well.
* Nothing is tested while an agent or the kubelet still reports a fault, or while a person, a drain or another
  system keeps the node out.
* The wait doubles with each check, up to a day, and without a sign of repair five failures are the end of it.

It does nothing where dlr does not cordon (`--cordon=report` or `off`).
"""
