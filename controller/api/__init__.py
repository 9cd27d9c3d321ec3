"""API server over HTTP: requests, pages, limits, turns. Other packages use `controller.client`."""
