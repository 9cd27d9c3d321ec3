"""`dlr doctor`: what of a cluster is as dlr needs it, and what to do about the rest."""
