"""A model of a job's history, for its timeline and its diagnosis."""
