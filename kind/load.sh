#!/usr/bin/env bash
# Load the images onto the kind cluster's nodes, which have no registry to pull them from.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_docker "loading images"
require kind "loading images"

for image in "$CONTROLLER_IMAGE" "$AGENT_IMAGE" "$WORKER_IMAGE" "$EXAMPLES_IMAGE"; do
  docker image inspect "$image" >/dev/null 2>&1 || fail "there is no image $image; run kind/build.sh first."
  kind load docker-image "$image" --name "$CLUSTER"
done
