"""The neighbours of an agent in its world, watched so that a host that falls silent is noticed in seconds.

A host without power, or one that is cut off, sends no reset: its peers would wait for it in a collective for
minutes. Each agent keeps a connection to the next member on either side of it, in the order of ranks
(`watcher.py`), and its report names those that do not answer (`silentPeers`). `watch.py` decides, without
I/O, whom to watch and who is silent. What follows is the controller's to decide, which wants a second
witness (`reconcilers/worker/reach.py`).
"""
