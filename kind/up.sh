#!/usr/bin/env bash
# Set up a kind cluster with dlr: create the cluster (or use the existing one), build and load the images,
# install dlr, and wait until the controller is ready. The kubeconfig is written to $KUBECONFIG.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_docker "kind"
require kind "a kind cluster"
require kubectl "installing dlr"

if kind get clusters 2>/dev/null | grep --quiet --line-regexp "$CLUSTER"; then
  kind export kubeconfig --name "$CLUSTER"
else
  kind create cluster --name "$CLUSTER" --config "$REPOSITORY/kind/cluster.yaml" --wait 5m
fi
"$REPOSITORY/kind/build.sh"
"$REPOSITORY/kind/load.sh"
kubectl apply -k "$REPOSITORY/deploy"
kubectl wait --for=condition=Established --timeout=60s \
  crd/elasticjobs.elastic.iml.github.io crd/elasticworkers.elastic.iml.github.io \
  crd/elasticworlds.elastic.iml.github.io
# A rebuilt image has the same name, so only new Pods use it.
kubectl --namespace dlr-system rollout restart deployment/dlr-controller
kubectl --namespace dlr-system rollout status deployment/dlr-controller --timeout=5m
