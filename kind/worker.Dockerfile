# What nodes are checked in, and what a training image of your own may start from: Python and torch. The agent and the
# probes are injected. Built by kind/build.sh; kind/controller.Dockerfile says how to name the base by its digest.
ARG PYTHON_IMAGE=python:3.13.9-slim-bookworm
FROM ${PYTHON_IMAGE}
ARG TORCH_VERSION
ARG TORCH_PIP_ARGS=""
COPY kind/constraints.txt /constraints.txt
# An image that is built on this one has them too.
ENV PIP_CONSTRAINT=/constraints.txt PIP_BUILD_CONSTRAINT=/constraints.txt
RUN pip install --no-cache-dir ${TORCH_PIP_ARGS} torch==${TORCH_VERSION}
# torch asks for the user's name and home. An image that is built on this one installs as USER root, and comes back.
RUN useradd --uid 65532 --user-group --create-home worker && install -d -o worker -g worker /workspace
WORKDIR /workspace
USER 65532:65532
