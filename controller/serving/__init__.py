"""Health and metrics over HTTP. `controller.manager` serves them."""
