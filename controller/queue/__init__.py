"""A controller: its queue, and the loop that works it off. `controller.builder` makes it."""
