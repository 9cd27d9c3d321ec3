"""Training processes that live on from one round into the next, and their agent.

`messages` defines their messages over a Unix socket; `desk` is the agent's side of it, and `client` the
process's. `kept` keeps processes between two rounds and hands them the next one; `spares` are processes that
are started ahead.
"""
