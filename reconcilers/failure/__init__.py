"""What failures are, who was first, what they cost and what follows."""
