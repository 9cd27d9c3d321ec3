#!/usr/bin/env bash
# Build the four images: the controller's, the agent's (what is injected into training images), the workers' (Python
# and torch; what nodes are checked in), and the examples' on top of that.
#   python kind/requirements.py --torch-index <PyTorch's CPU index>     before, keeps CUDA out of the last two
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_docker "building images"

docker build --file "$REPOSITORY/kind/controller.Dockerfile" --tag "$CONTROLLER_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/agent.Dockerfile" --tag "$AGENT_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/worker.Dockerfile" --tag "$WORKER_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/examples.Dockerfile" --tag "$EXAMPLES_IMAGE" \
  --build-arg WORKER_IMAGE="$WORKER_IMAGE" \
  "$REPOSITORY"
