"""An entry of `sys.path` in training processes under `dlrover-run` only: it shadows modules of DLRover that
would look for a master.

The folder is a package only so that it gets packaged.
"""
