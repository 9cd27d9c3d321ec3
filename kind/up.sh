#!/usr/bin/env bash
# A kind cluster with dlr in it: create it (or take the one there is), build and load the images, install, and
# wait until the controller is ready. The kubeconfig goes where $KUBECONFIG says.
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
# An image that was built anew has the old one's name: only new Pods take it.
kubectl --namespace dlr-system rollout restart deployment/dlr-controller
kubectl --namespace dlr-system rollout status deployment/dlr-controller --timeout=5m
