"""Gives every Pod a node: a pure decision, and the loop that keeps asking for it."""
