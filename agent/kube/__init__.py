"""The agent's Kubernetes client: calls, retries, and a watch of one object."""
