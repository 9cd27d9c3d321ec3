"""torch elastic's agent, driven by events: training processes are started, watched, stopped, and judged."""
