# What nodes are checked in, and what a training image of your own may start from: torch, the agent, the probes.
# Built from the repository's root by kind/build.sh.
FROM python:3.13-slim
ARG TORCH_VERSION
ARG TORCH_PIP_ARGS=""
RUN pip install --no-cache-dir ${TORCH_PIP_ARGS} torch==${TORCH_VERSION}
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY crds crds
COPY deploy deploy
COPY controller controller
COPY reconcilers reconcilers
COPY healthcheck healthcheck
COPY agent agent
COPY localcluster localcluster
COPY dlr dlr
RUN pip install --no-cache-dir .
WORKDIR /workspace
