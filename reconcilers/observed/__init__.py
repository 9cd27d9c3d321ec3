"""What is observed: objects as they were read, and facts about them."""
