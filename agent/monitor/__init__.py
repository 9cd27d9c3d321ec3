"""What the agent observes of its training processes: steps, hangs, memory, devices."""
