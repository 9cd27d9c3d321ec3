"""What any Kubernetes API server must do for dlr, checked through kubectl, raw HTTP and the Python clients.

Without an option the suite starts the embedded API server; with `--conformance-kubeconfig` it runs against
any other. It therefore asserts only what real Kubernetes does. README.md says how to use it.
"""
