"""Conditions of a job, one module each."""
