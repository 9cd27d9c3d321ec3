"""The names the parts agree on: API group, labels, environment variables.

Standard library only: the agent imports this inside training images.
"""

GROUP = "elastic.iml.github.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

LABEL_JOB = f"{GROUP}/job-name"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_WORLD = f"{GROUP}/world-index"
LABEL_GROUPED_JOB = f"{GROUP}/grouped-job"
"""Name of the ElasticJob with `replicaGroups`, on all objects of its groups."""
LABEL_GROUP_INDEX = f"{GROUP}/group-index"
LABEL_UNIT = f"{GROUP}/unit-index"
"""On Pods of a job with `elasticPolicy.domain` and a nodeUnit above 1: those that rather share a domain."""
LABEL_CHECK = f"{GROUP}/check-name"
LABEL_RECHECK = f"{GROUP}/recheck"
"""Of a NodeCheck, "true": the controller made it for a cordoned node, the first of its `nodes`."""
LABEL_TYPE = f"{GROUP}/replica-type"
LABEL_INDEX = f"{GROUP}/replica-index"
LABEL_INCARNATION = f"{GROUP}/incarnation"
NVLINK_LABELS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "resource.nvidia.com/computeDomain",
)
"""Node labels that name a node's NVLink domain; the first that a node has counts. In their order, read in
November 2026: GPU feature discovery (`<cluster uuid>.<clique>`), topograph since 1.0, topograph before, and
the ComputeDomain of NVIDIA's DRA driver."""
LABEL_APP = "app.kubernetes.io/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PROFILE = f"{GROUP}/profile"
"""Of an ElasticJob: jobs with the same value begin with what the finished ones among them came to."""
APP = "elasticjob"
MANAGER = "dlr"

WORKER = "worker"
"""The replica type that trains; its indices are the node ranks."""

CHIEF = "chief"
PS = "ps"
EVALUATOR = "evaluator"
"""The replica types beside workers that a job with parameter servers may have (docs/roles.md)."""

CHECK = "check"
"""The type of the workers of a NodeCheck, one a node."""

LONGEST_NAME = 51
"""Characters of a job's name and a type's together: a Pod's, with index and incarnation, is a DNS label."""

MASTER_TYPES = ("dlrover-master", "master")
"""DLRover's master replica types: accepted, ignored, and said so in a condition."""

CONTROLLER = f"{GROUP}/dlr-controller"
"""Our controller in `spec.managedBy` of an ElasticJob; any other name there is another controller's."""

TAINT_UNHEALTHY = f"{GROUP}/unhealthy"
"""The taint of a node that was found faulty; its value is the reason."""
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""The taint of a node that somebody has cordoned (k8s.io/api/core/v1/well_known_taints.go)."""

SYSTEM_NAMESPACE = "dlr-system"
"""Namespace of the controller, unless it is installed elsewhere."""

LABEL_MAY_CORDON = f"{GROUP}/may-cordon"
"""Of a Namespace, "true": what its checks and workers say of nodes counts for their cordon."""

ANNOTATION_GROUPED_GENERATION = f"{GROUP}/grouped-generation"
"""Of a replica group's ElasticJob: generation of the job that it was made of, a dot, and the generation that
the group itself got by that. So an edit of either shows."""
ANNOTATION_CORDON = f"{GROUP}/cordon"
"""Annotation of a Node: the finding that its cordon follows from (`crds/cordon.py`)."""

ANNOTATION_RESOURCES = f"{GROUP}/resources"
"""Of a Pod: the digest of what its first container may use (`reconcilers/observed/resources.py`)."""

ANNOTATION_TEMPLATE = f"{GROUP}/template"
"""Of a Pod: the digest of the template and the variables that it was made of, but for its resources."""

ANNOTATION_LAUNCHER = f"{GROUP}/launcher"
"""Of a Pod: the launcher whose agent reports how its training ends (`reconcilers/observed/command.py`)."""

ANNOTATION_TOTAL_STEPS = f"{GROUP}/total-steps"
"""Of an ElasticJob: how many steps its training has in all, where its author knows."""

ANNOTATION_STACKS = f"{GROUP}/stacks"
"""Of an ElasticJob: a text of one's own choice, each new one of which asks the agents of its workers where
their training processes are (docs/hangs.md)."""

ANNOTATION_SCALE = f"{GROUP}/scale"
"""Of an ElasticJob: the last scale request, written with its counts (`reconcilers/scale/request.py`)."""

ANNOTATION_RECORD = f"{GROUP}/record"
"""Of a Node: what its last checks gave (`reconcilers/findings/record.py`)."""

ANNOTATION_REFERENCE = f"{GROUP}/reference"
"""Of a Node: how fast its class of hardware was when the node first passed a check, for later ones to compare
with (`reconcilers/findings/reference.py`)."""

CONDITION_UNHEALTHY = "ElasticUnhealthy"
"""Condition of a Node: True while it is out of service by its newest verdict, and should be remediated."""
CONDITION_SUSPECTED = "ElasticSuspected"
"""Condition of a Node: True while something speaks against it for which it is not out of service."""

NVSENTINEL_CHECK = "ElasticNodeCheck"
"""`checkName` of our verdicts in NVSentinel, and so the type of the Node condition that it makes of them."""

ENV_JOB_NAME = "DLR_JOB_NAME"
ENV_CHECK_NAME = "DLR_CHECK_NAME"
"""Instead of ENV_JOB_NAME, in the Pods of a NodeCheck."""
ENV_REPLICA_TYPE = "DLR_REPLICA_TYPE"
ENV_NAMESPACE = "DLR_NAMESPACE"
ENV_WORKER_NAME = "DLR_WORKER_NAME"
ENV_WORKER_INDEX = "DLR_WORKER_INDEX"
ENV_INCARNATION = "DLR_INCARNATION"
ENV_POD_UID = "DLR_POD_UID"
ENV_POD_IP = "POD_IP"
ENV_NODE_NAME = "DLR_NODE_NAME"
ENV_JOB_KEY = "DLR_JOB_KEY"
"""The key of the Pod's job or NodeCheck, 32 bytes in hexadecimal, from its Secret (`key_secret`). Agents
prove it to each other, and keep it out of the environment of what they start."""
ENV_HEARTBEAT_SECONDS = "DLR_HEARTBEAT_SECONDS"
ENV_GRACE_SECONDS = "DLR_TERMINATION_GRACE_SECONDS"
ENV_TERMINATION_LOG = "DLR_TERMINATION_LOG"
"""The file whose text the kubelet puts into the container's status when the container has ended."""
ENV_MEMORY_BYTES = "DLR_MEMORY_CHECKPOINT_BYTES"
"""Of `replicaSpecs.worker.memoryCheckpoint`: bytes for all slots of the Pod."""
ENV_MEMORY_REPLICAS = "DLR_MEMORY_CHECKPOINT_REPLICAS"
ENV_MEMORY_PERSIST = "DLR_MEMORY_CHECKPOINT_PERSIST"
"""1 if what training goes on from after a failure is to be persisted."""
ENV_TF_CONFIG = "TF_CONFIG"
"""TensorFlow's: its cluster, and which task of it this is."""
ENV_TF_CONFIG_KEPT = "DLR_TF_CONFIG_KEPT"
"""Set where the user has set TF_CONFIG, which then stays as it is."""
ENV_CLUSTER_VERSION = "DLR_CLUSTER_VERSION"
"""Of the cluster that TF_CONFIG tells of."""
ENV_NETWORK_INTERFACES = "DLR_NETWORK_INTERFACES"
"""auto where the agent is to choose the network interface of its training processes."""
ENV_GROUPED_JOB = "DLR_GROUPED_JOB"
"""Name of the ElasticJob whose replica group the Pod's job is; its ElasticWorld has the membership."""
ENV_GROUP_INDEX = "DLR_GROUP_INDEX"
ENV_REPLICAS_SOCKET = "DLR_REPLICAS_SOCKET"
"""Path of the agent's Unix socket through which training processes follow the groups (`agent/replicas`)."""
ENV_WORLD_SOCKET = "DLR_WORLD_SOCKET"
"""Path of the agent's Unix socket over which a training process lives through the death of its peers
(`agent/survival`)."""
ENV_JOINS = "DLR_JOINS"
"""1 for a process that takes part in a world whose other processes live on: its process groups are connected
when its loop begins."""
ENV_SPARE = "DLR_SPARE"
"""1 for a process that is started ahead: its loop begins when its agent hands it a round."""
ENV_SPARE_PROCESSES = "DLR_SPARE_PROCESSES"
"""Of `elasticPolicy.spareProcesses`: spares for each training process of the Pod, 0 or 1."""
ENV_COUNT_STEPS = "DLR_COUNT_STEPS"
"""Set to 0 by the user where steps are not to be counted (docs/hangs.md)."""

AGENT_ZIP = "dlr.pyz"
"""The file of the injected agent, beside the launchers in `bin/`."""
HAS_BEGUN = "has begun, and its agent has not reported yet"
"""The end of the line with which a launcher begins the termination message, `dlr: torchrun has begun, …`; the
first report that the API server takes deletes the line."""
POD_COMMANDS = ("run", "exec", "check-worker")
"""The commands of `dlr` that run in a Pod; its others need what an image of ours has."""


KEY_FIELD = "key"
"""The one field of a key's Secret."""


def key_secret(owner_uid: str) -> str:
    """Return the name of the Secret with the key of an ElasticJob or NodeCheck.

    It contains the owner's uid, so no earlier owner of the same name can have left it.
    """
    return f"dlr-key-{owner_uid}"


def with_port(address: str, port: object) -> str:
    """`10.0.0.1:80`, or `[fd00::1]:80`: without brackets, nobody could tell where an IPv6 address ends."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
