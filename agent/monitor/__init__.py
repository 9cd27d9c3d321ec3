"""Observation of the training processes: steps, hangs, memory, devices."""
