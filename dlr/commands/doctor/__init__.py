"""`dlr doctor`: checks whether a cluster has what dlr needs, with advice about the rest."""
