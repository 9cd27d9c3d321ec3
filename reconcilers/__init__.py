"""One reconciler a resource, and the pure decision functions that they call."""
