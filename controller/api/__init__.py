"""The API server over HTTP: requests, pages, limits, turns. `controller.client` is what others use of it."""
