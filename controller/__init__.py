"""The controller runtime: what a Kubernetes controller needs besides its decisions.

A reconciler's author meets three things: `Reconciler` and `Result` (reconciler.py) and
`ControllerBuilder` (builder.py). Everything else here serves them. errors.py and connection.py are shared
with the agent and the commands, client.py and watch/ with the embedded cluster.
"""
