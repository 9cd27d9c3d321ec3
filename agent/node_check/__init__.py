"""The agent's part in a NodeCheck: its duties, the probes and their reports."""
