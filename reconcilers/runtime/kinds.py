"""The API resources of dlr, of the schedulers whose PodGroups it makes, and of devices."""

from __future__ import annotations

from controller.resources import Resource
from crds import names

KUBERNETES_PODGROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
VOLCANO_PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
COSCHEDULING_PODGROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
RESOURCESLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
RESOURCECLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
DEVICETAINTRULES = Resource("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False)
ELASTICJOBS = Resource(names.GROUP, names.VERSION, "elasticjobs", "ElasticJob")
ELASTICWORKERS = Resource(names.GROUP, names.VERSION, "elasticworkers", "ElasticWorker")
ELASTICWORLDS = Resource(names.GROUP, names.VERSION, "elasticworlds", "ElasticWorld")
SCALEPLANS = Resource(names.GROUP, names.VERSION, "scaleplans", "ScalePlan")
SHARDSETS = Resource(names.GROUP, names.VERSION, "shardsets", "ShardSet")
NODECHECKS = Resource(names.GROUP, names.VERSION, "nodechecks", "NodeCheck")
