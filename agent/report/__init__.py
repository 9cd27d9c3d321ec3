"""What the agent says: `status.agent` of its ElasticWorker, and its Lease."""
