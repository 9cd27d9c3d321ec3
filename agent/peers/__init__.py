"""Watches an agent's neighbours in its world, so that a silent host is noticed within seconds.

A host that loses power or its network sends no reset, and its peers would wait for it in a collective for
minutes. Each agent keeps a connection to the next member on either side, in the order of ranks
(`watcher.py`), and reports those that do not answer (`silentPeers`). `watch.py` decides, without I/O, which
members to watch and which are silent. The controller decides what follows, and needs a second report for it
(`reconcilers/worker/reach.py`).
"""
