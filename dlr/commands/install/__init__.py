"""`dlr install` and `dlr uninstall`: add dlr's objects to a cluster, and remove them."""
