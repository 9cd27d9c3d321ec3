"""One collection, listed and then watched. `controller.cache` is what others use of it."""
