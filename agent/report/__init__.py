"""The agent's writes to the API server: `status.agent` of its ElasticWorker, and its Lease.

`reporter.py` writes the latest state from a thread, so that training never waits for the API server;
`heartbeat.py` renews the Lease; `refusal.py` decides which refusals are final. Link, membership and
node_check are above; kube, monitor and facts are below.
"""
