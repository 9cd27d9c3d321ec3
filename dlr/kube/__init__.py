"""The API server as commands, SDK and dashboard talk to it: blocking requests and watches.

`connection.py` finds the cluster, `transport.py` makes requests with the standard library, `api.py` turns
objects in and failures into sentences, `following.py` and `waiting.py` watch until something is finished.
Below is nothing of dlr/; job, client, dashboard and commands are above.
"""
