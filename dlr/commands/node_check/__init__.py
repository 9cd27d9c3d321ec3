"""`dlr node-check`: of this machine (`local`), or of a cluster's nodes (`remote`, shown by `view` and `history`)."""
