# The agent that is injected into training images: a zip and three launchers, copied by an init container.
# Built from the repository's root by kind/build.sh. kind/controller.Dockerfile says how to name a base by its digest.
# With a Python of the training images' minor version, their Pods need not compile the agent (docs/injection.md).
ARG PYTHON_IMAGE=python:3.13.9-slim-bookworm
ARG BUSYBOX_IMAGE=busybox:1.37.0-musl
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY kind/constraints.txt /constraints.txt
ENV PIP_CONSTRAINT=/constraints.txt PIP_BUILD_CONSTRAINT=/constraints.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY crds crds
COPY deploy deploy
COPY controller controller
COPY reconcilers reconcilers
COPY healthcheck healthcheck
COPY agent agent
COPY localcluster localcluster
COPY simulator simulator
COPY dlr dlr
COPY bin bin
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir '.[controller]' && /venv/bin/dlr bundle /agent

FROM ${BUSYBOX_IMAGE}
COPY --from=build /agent /opt/dlr-agent
USER 65532:65532
