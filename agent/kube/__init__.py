"""The agent's Kubernetes client: calls, retries, and a watch of one object.

`api.py` has the interface `AgentApi` that the rest of the agent uses; `standalone/` implements it without a
cluster. Each call has a time-out; retries go on until the Pod ends or the refusal is final. Errors and
connection are those of controller/. Report and link are above.
"""
