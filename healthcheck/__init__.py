"""Node check: who tests with whom, and what the results say. Pure functions; the reconcilers do the I/O."""
