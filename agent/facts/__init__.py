"""Worlds, failures and results: what several parts of the agent read. Standard library alone."""
