"""Who trains together: the world as desired state, and who counts for it."""
