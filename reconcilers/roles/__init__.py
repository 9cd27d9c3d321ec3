"""Jobs with parameter servers: who is which task of their cluster, and what each role's end means."""
