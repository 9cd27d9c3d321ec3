"""Where a job's time went: goodput, history, metrics."""
