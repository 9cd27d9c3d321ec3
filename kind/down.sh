#!/usr/bin/env bash
# Remove the kind cluster; the images stay.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_docker "kind"
require kind "removing a kind cluster"

kind delete cluster --name "$CLUSTER"
