"""What the agent writes to the API server: `status.agent` of its ElasticWorker, and its Lease.

`reporter.py` writes the latest state from a thread, so that training never waits for the API server;
`heartbeat.py` renews the Lease; `refusal.py` knows which refusals are final. Above are link, membership
and node_check; below are kube, monitor and facts.
"""
