"""The agent's part in a NodeCheck: what it is asked, the probes, what it found."""
