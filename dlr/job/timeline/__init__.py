"""A model of how a job spent its time, for its timeline and its diagnosis."""
