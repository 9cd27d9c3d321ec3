"""What failures are, who was first, what they cost and what follows; and Pods that cannot be made."""
