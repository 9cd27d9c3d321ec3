"""The API server as commands, SDK and dashboard talk to it: blocking requests and watches.

`connection.py` finds the cluster, `api.py` adds kinds, namespaces and pages to the agent's client,
`following.py` and `waiting.py` watch until something is finished. Below is nothing of dlr/; job, client,
dashboard and commands are above.
"""
