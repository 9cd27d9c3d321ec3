"""Training processes that live from one round into the next, and their agent.

`messages` has what the two say to each other over a Unix socket, `desk` is the agent's side of it and
`client` the process's. `kept` has what an agent keeps between two rounds and hands the next round to, and
`spares` processes that are started ahead.
"""
