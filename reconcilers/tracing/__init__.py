"""A job's life as spans, for `dlr job trace`, and for OpenTelemetry if a collector is configured."""
