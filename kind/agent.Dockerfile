# The agent that is injected into training images: a zip and three launchers, copied by an init container.
# Built from the repository's root by kind/build.sh.
# If its Python has the training images' minor version, their Pods need not compile the agent (docs/from-torchrun.md).
ARG PYTHON_IMAGE=python:3.13.14-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8
ARG BUSYBOX_IMAGE=busybox:1.37.0-musl@sha256:1256f55742579badea94e3e2f574fc90021120f6c1aa01c87182566dfb950c39
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY kind/requirements /requirements
# As in kind/controller.Dockerfile.
ENV PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all:
RUN python -m venv /build && /build/bin/pip install --require-hashes -r /requirements/build.txt
RUN python -m venv /venv && /venv/bin/pip install --require-hashes -r /requirements/controller.txt
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
RUN /build/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /venv/bin/pip install --no-index --no-deps /wheels/*.whl && /venv/bin/pip check && /venv/bin/dlr bundle /agent

FROM ${BUSYBOX_IMAGE}
COPY --from=build /agent /opt/dlr-agent
USER 65532:65532
