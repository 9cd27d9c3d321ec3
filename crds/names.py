"""Names that all parts share: API group, labels, environment variables.

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
"""Label of Pods that should share a domain, in a job with `elasticPolicy.domain` and a nodeUnit above 1."""
LABEL_CHECK = f"{GROUP}/check-name"
LABEL_RECHECK = f"{GROUP}/recheck"
"""Label of a NodeCheck, "true" if the controller created it for a cordoned node, the first of its `nodes`."""
LABEL_TYPE = f"{GROUP}/replica-type"
LABEL_INDEX = f"{GROUP}/replica-index"
LABEL_INCARNATION = f"{GROUP}/incarnation"
NVLINK_LABELS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "resource.nvidia.com/computeDomain",
)
"""Node labels that name a node's NVLink domain, in order of precedence, as of November 2026: GPU feature
discovery (`<cluster uuid>.<clique>`), topograph since 1.0, topograph before, and the ComputeDomain of
NVIDIA's DRA driver."""
LABEL_APP = "app.kubernetes.io/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_PROFILE = f"{GROUP}/profile"
"""Label of an ElasticJob: jobs with the same value start with what the finished ones among them used."""
APP = "elasticjob"
MANAGER = "dlr"

WORKER = "worker"
"""Replica type that trains; its indices are the node ranks."""

CHIEF = "chief"
PS = "ps"
EVALUATOR = "evaluator"
"""Replica types beside workers in a job with parameter servers (docs/roles.md)."""

CHECK = "check"
"""Type of the workers of a NodeCheck, one per node."""

LONGEST_NAME = 51
"""Maximum characters of a job's name and a type's together, so that a Pod's name, with index and incarnation,
is a DNS label."""

MASTER_TYPES = ("dlrover-master", "master")
"""DLRover's master replica types: accepted, ignored, and reported in a condition."""

CONTROLLER = f"{GROUP}/dlr-controller"
"""Our controller in `spec.managedBy` of an ElasticJob; any other name there is another controller's."""

TAINT_UNHEALTHY = f"{GROUP}/unhealthy"
"""Taint of a node that was found faulty; its value is the reason."""
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""Taint of a cordoned node (k8s.io/api/core/v1/well_known_taints.go)."""

SYSTEM_NAMESPACE = "dlr-system"
"""Namespace of the controller, unless it is installed elsewhere."""

LABEL_MAY_CORDON = f"{GROUP}/may-cordon"
"""Label of a Namespace, "true" if findings of its checks and workers count for cordons."""

ANNOTATION_GROUPED_GENERATION = f"{GROUP}/grouped-generation"
"""Annotation of a replica group's ElasticJob: the generation of the job that it was created from, a dot, and
the resulting generation of the group. So an edit of either is visible."""
ANNOTATION_CORDON = f"{GROUP}/cordon"
"""Annotation of a Node: the finding behind its cordon (`crds/cordon.py`)."""

ANNOTATION_RESOURCES = f"{GROUP}/resources"
"""Annotation of a Pod: digest of the resources of its first container
(`reconcilers/observed/resources.py`)."""

ANNOTATION_TEMPLATE = f"{GROUP}/template"
"""Annotation of a Pod: digest of the template and variables that it was created from, without resources."""

ANNOTATION_LAUNCHER = f"{GROUP}/launcher"
"""Annotation of a Pod: the launcher whose agent reports the end of training
(`reconcilers/observed/command.py`)."""

ANNOTATION_TOTAL_STEPS = f"{GROUP}/total-steps"
"""Annotation of an ElasticJob: total steps of its training, if its author set it."""

ANNOTATION_STACKS = f"{GROUP}/stacks"
"""Annotation of an ElasticJob: any text; each new one requests the stacks of all training processes from the
agents (docs/hangs.md)."""

ANNOTATION_SCALE = f"{GROUP}/scale"
"""Annotation of an ElasticJob: the last scale request, with its counts (`reconcilers/scale/request.py`)."""

ANNOTATION_RECORD = f"{GROUP}/record"
"""Annotation of a Node: results of its last checks (`reconcilers/findings/record.py`)."""

ANNOTATION_REFERENCE = f"{GROUP}/reference"
"""Annotation of a Node: speed of its hardware class when the node first passed a check, as a reference for
later ones (`reconcilers/findings/reference.py`)."""

CONDITION_UNHEALTHY = "ElasticUnhealthy"
"""Condition of a Node: True while its newest verdict keeps it out of service, so that it should be
remediated."""
CONDITION_SUSPECTED = "ElasticSuspected"
"""Condition of a Node: True while there is evidence against it that does not put it out of service."""

NVSENTINEL_CHECK = "ElasticNodeCheck"
"""`checkName` of our verdicts in NVSentinel, and so the type of its Node condition."""

ENV_JOB_NAME = "DLR_JOB_NAME"
ENV_CHECK_NAME = "DLR_CHECK_NAME"
"""Replaces ENV_JOB_NAME in the Pods of a NodeCheck."""
ENV_REPLICA_TYPE = "DLR_REPLICA_TYPE"
ENV_NAMESPACE = "DLR_NAMESPACE"
ENV_WORKER_NAME = "DLR_WORKER_NAME"
ENV_WORKER_INDEX = "DLR_WORKER_INDEX"
ENV_INCARNATION = "DLR_INCARNATION"
ENV_POD_UID = "DLR_POD_UID"
ENV_POD_IP = "POD_IP"
ENV_NODE_NAME = "DLR_NODE_NAME"
ENV_JOB_KEY = "DLR_JOB_KEY"
"""Key of the Pod's job or NodeCheck, 32 bytes in hexadecimal, from its Secret (`key_secret`). Agents
authenticate each other with it, and remove it from the environment of their processes."""
ENV_HEARTBEAT_SECONDS = "DLR_HEARTBEAT_SECONDS"
ENV_GRACE_SECONDS = "DLR_TERMINATION_GRACE_SECONDS"
ENV_TERMINATION_LOG = "DLR_TERMINATION_LOG"
"""File whose text the kubelet copies into the container's status when the container ends."""
ENV_MEMORY_BYTES = "DLR_MEMORY_CHECKPOINT_BYTES"
"""Bytes for all slots of the Pod, from `replicaSpecs.worker.memoryCheckpoint`."""
ENV_MEMORY_REPLICAS = "DLR_MEMORY_CHECKPOINT_REPLICAS"
ENV_MEMORY_PERSIST = "DLR_MEMORY_CHECKPOINT_PERSIST"
"""1 if the checkpoint that training resumes from after a failure is written to storage, too."""
ENV_TF_CONFIG = "TF_CONFIG"
"""TensorFlow's variable with the cluster, and the task of this process."""
ENV_TF_CONFIG_KEPT = "DLR_TF_CONFIG_KEPT"
"""Set where the user has set TF_CONFIG, which then stays as it is."""
ENV_CLUSTER_VERSION = "DLR_CLUSTER_VERSION"
"""Version of the cluster in TF_CONFIG."""
ENV_NETWORK_INTERFACES = "DLR_NETWORK_INTERFACES"
"""auto if the agent chooses the network interface of its training processes."""
ENV_GROUPED_JOB = "DLR_GROUPED_JOB"
"""Name of the ElasticJob of which the Pod's job is a replica group; its ElasticWorld has the membership."""
ENV_GROUP_INDEX = "DLR_GROUP_INDEX"
ENV_REPLICAS_SOCKET = "DLR_REPLICAS_SOCKET"
"""Path of the agent's Unix socket through which training processes follow the groups (`agent/replicas`)."""
ENV_WORLD_SOCKET = "DLR_WORLD_SOCKET"
"""Path of the agent's Unix socket through which a training process survives the death of its peers
(`agent/survival`)."""
ENV_JOINS = "DLR_JOINS"
"""1 for a process that joins a world of surviving processes: its process groups are connected when its loop
begins."""
ENV_SPARE = "DLR_SPARE"
"""1 for a process that is started in advance: its loop begins when its agent gives it a round."""
ENV_SPARE_PROCESSES = "DLR_SPARE_PROCESSES"
"""Spares per training process of the Pod, 0 or 1, from `elasticPolicy.spareProcesses`."""
ENV_COUNT_STEPS = "DLR_COUNT_STEPS"
"""Set to 0 by the user to disable the counting of steps (docs/hangs.md)."""

AGENT_ZIP = "dlr.pyz"
"""File name of the injected agent, beside the launchers in `bin/`."""
HAS_BEGUN = "has begun, and its agent has not reported yet"
"""End of the first line of the termination message, `dlr: torchrun has begun, …`, which a launcher writes;
the first report that the API server accepts deletes the line."""
POD_COMMANDS = ("run", "exec", "check-worker")
"""Commands of `dlr` that run in a Pod; the others need the dependencies of our images."""


KEY_FIELD = "key"
"""Only field of a key's Secret."""


def key_secret(owner_uid: str) -> str:
    """Return the name of the Secret with the key of an ElasticJob or NodeCheck.

    It contains the owner's uid, so it cannot be left over from an earlier owner of the same name.
    """
    return f"dlr-key-{owner_uid}"


def with_port(address: str, port: object) -> str:
    """Return `10.0.0.1:80`, or `[fd00::1]:80`: an IPv6 address needs brackets to show where it ends."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
