"""Leader election by a Lease. `controller.manager` runs it."""
