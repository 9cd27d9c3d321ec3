#!/usr/bin/env bash
# Build the four images: controller, agent (injected into training images), worker (Python and torch; runs node
# checks), and examples on top of the worker's.
# To keep CUDA out of the last two, run this before:
#   python kind/requirements.py --torch-index <PyTorch's CPU index>
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_docker "building images"

docker build --file "$REPOSITORY/kind/controller.Dockerfile" --tag "$CONTROLLER_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/agent.Dockerfile" --tag "$AGENT_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/worker.Dockerfile" --tag "$WORKER_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/examples.Dockerfile" --tag "$EXAMPLES_IMAGE" \
  --build-arg WORKER_IMAGE="$WORKER_IMAGE" \
  "$REPOSITORY"
