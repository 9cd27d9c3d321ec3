#!/usr/bin/env bash
# Build the four images: the controller's, the agent's (what is injected into training images), the workers' (Python
# and torch; what nodes are checked in), and the examples' on top of that.
#   TORCH_PIP_ARGS="--index-url <PyTorch's CPU index>" kind/build.sh     keeps CUDA out of the last two
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_docker "building images"

docker build --file "$REPOSITORY/kind/controller.Dockerfile" --tag "$CONTROLLER_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/agent.Dockerfile" --tag "$AGENT_IMAGE" "$REPOSITORY"
docker build --file "$REPOSITORY/kind/worker.Dockerfile" --tag "$WORKER_IMAGE" \
  --build-arg TORCH_VERSION="${TORCH_VERSION:-2.13.0}" \
  --build-arg TORCH_PIP_ARGS="${TORCH_PIP_ARGS:-}" \
  "$REPOSITORY"
docker build --file "$REPOSITORY/kind/examples.Dockerfile" --tag "$EXAMPLES_IMAGE" \
  --build-arg WORKER_IMAGE="$WORKER_IMAGE" \
  "$REPOSITORY"
