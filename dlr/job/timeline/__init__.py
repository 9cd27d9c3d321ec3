"""Where a job's time went, as a model."""
