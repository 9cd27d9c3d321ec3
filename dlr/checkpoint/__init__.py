"""Checkpoints that cost a step, and leaving without loss."""
