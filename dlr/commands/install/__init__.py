"""`dlr install` and `dlr uninstall`: dlr's objects in a cluster, put there and taken away."""
