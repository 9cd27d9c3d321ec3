"""The API client of commands, SDK and dashboard: blocking requests and polling.

`connection.py` finds the cluster, `api.py` adds kinds, namespaces and pages to the agent's client,
`following.py` polls until something is finished, `waiting.py` shows waits. It imports nothing else of dlr/;
job, client, dashboard and commands import it.
"""
