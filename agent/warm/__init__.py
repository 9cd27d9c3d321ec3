"""Warm start: training processes are forked from a parent that has imported torch (docs/warm-start.md)."""
