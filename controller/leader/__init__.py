"""Leader election with a Lease. `controller.manager` runs it."""
