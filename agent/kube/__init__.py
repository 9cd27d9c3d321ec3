"""The agent's Kubernetes client: calls, retries, and a watch of one object.

`api.py` has the interface `AgentApi` that the rest of the agent is written for; `standalone/` implements it
without a cluster. Each call has a time-out; retries go on until the Pod ends or the refusal is final. Errors
and connection are those of controller/. Above are report, link and session.
"""
