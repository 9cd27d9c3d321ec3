"""The API server of the embedded cluster: Kubernetes' API, on one machine, for one user.

A request passes `http` (path, body, answer), `authentication`, `rbac`, and then one of `reads`, `watch`,
`writes`, `deletion` or a subresource module. All of them work on `store`, which holds every object in memory
and writes each change through to SQLite before anybody sees it. `garbage`, `namespaces` and `crds` are the
few controllers that Kubernetes runs elsewhere, and which are simplest beside the store.
"""
