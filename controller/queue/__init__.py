"""Controller: its queue, and the loop that processes it. `controller.builder` makes it."""
