"""Room that comes and goes, what a job used, and what the next one is to have."""
