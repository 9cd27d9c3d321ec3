"""Verdicts on a node for NVSentinel and for NVRx's launcher. Optional, by `dlr node-health`.

NVSentinel listens, and NVRx asks, at a Unix socket of the node. An administrator's process on each node
handles these sockets: a training container could send fake events, and the Pods of checks run under Pod
Security `restricted`, without host paths. The process reads the Node, whose condition is the combined
verdict of all checks, so a restart loses nothing.

`messages.py` has the two protocols, `verdict.py` their content, and `bridge.py` the sockets. The package
sits above controller/ and needs grpcio and protobuf (the extra `node-health`). Sources, as of November
2026:

* NVSentinel `data-models/protobufs/health_event.proto` as of d87e985 and 264bfab, `docs` as of 0525f99
* nvidia-resiliency-ext d8686d9: `shared_utils/proto/nvhcd.proto`, class NodeHealthCheck
"""
