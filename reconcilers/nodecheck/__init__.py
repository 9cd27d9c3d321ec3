"""Checks of nodes: who takes part, what is next, what was found, what a job makes of it."""
