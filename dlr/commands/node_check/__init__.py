"""`dlr node-check`: checks this machine (`local`), or nodes of a cluster (`remote`)."""
