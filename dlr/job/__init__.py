"""What a job is and why: facts, failures, causes and its timeline.

It is below the commands, the SDK and the dashboard."""
