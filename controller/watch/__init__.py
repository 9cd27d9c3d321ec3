"""One collection, listed and then watched. Other packages use `controller.cache`."""
