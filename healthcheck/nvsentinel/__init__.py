"""Verdicts on a node for NVSentinel and for NVRx's launcher. Optional, by `dlr node-health`.

Both listen, or ask, at a unix socket of the node. A process of the administrator's holds these sockets, one a
node: a training container could send events of its own, and the Pods of checks run under Pod Security
`restricted`, without host paths. It reads the Node, whose condition is the verdict of all checks together, so
that a restart loses nothing and needs no memory.

`messages.py` has the two protocols, `words.py` what goes through them, and `bridge.py` the sockets. Below is
controller/; needs grpcio and protobuf (the extra `node-health`). Read for it, in November 2026:

* NVSentinel `data-models/protobufs/health_event.proto` as of d87e985 and 264bfab, `docs` as of 0525f99
* nvidia-resiliency-ext d8686d9: `shared_utils/proto/nvhcd.proto`, class NodeHealthCheck
"""
