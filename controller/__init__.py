"""Controller runtime: the parts of a Kubernetes controller besides its decisions.

The author of a reconciler needs three things: `Reconciler` and `Result` (reconciler.py) and
`ControllerBuilder` (builder.py). Everything else here serves them. errors.py and connection.py are shared
with the agent and the commands, client.py and watch/ with the embedded cluster.
"""
