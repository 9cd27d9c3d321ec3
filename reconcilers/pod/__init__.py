"""A worker's Pod: what it is made of, and what becomes of it."""
