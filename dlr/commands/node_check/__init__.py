"""`dlr node-check`: of this machine (`local`), or of nodes of a cluster (`remote`, and what shows it)."""
