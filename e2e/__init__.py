"""The end-to-end suite: one harness, its backends, the scenarios, and the demo."""
