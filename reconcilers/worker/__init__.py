"""The worker reconciler, and the Pods that it makes."""
