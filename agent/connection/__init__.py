"""Connections between the agents of one job, open to no one else (docs/security.md)."""
