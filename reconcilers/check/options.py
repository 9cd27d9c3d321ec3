"""What whoever runs the controller says of node checks. Standard library only: the CLI reads it at start."""

from __future__ import annotations

DEFAULT_IMAGE = "dlr-worker:0.1.0"
"""Of the Pods that check nodes, where a NodeCheck brings no template: torch, the agent and the probes."""
