"""A Kubernetes for one machine: API server, scheduler and a kubelet that runs Pods as processes."""
