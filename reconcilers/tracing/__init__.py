"""A job's life as spans: for `dlr job trace`, and for OpenTelemetry where a collector is named."""
