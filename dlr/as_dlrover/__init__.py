"""An entry of `sys.path` in training processes under `dlrover-run`, and nowhere else: what a script imports
of DLRover that would look for its master is found here first.

The folder is a package only so that it is shipped.
"""
