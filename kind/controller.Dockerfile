# The controller: no torch, no compiler, nobody's root. Built from the repository's root by kind/build.sh.
#
# The base is named by its version; a digest would be surer, and is yours to add once you have pulled it:
#   --build-arg PYTHON_IMAGE=python:3.13.9-slim-bookworm@sha256:…
ARG PYTHON_IMAGE=python:3.13.9-slim-bookworm
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY kind/constraints.txt /constraints.txt
# Of what is installed, and of what that is built with.
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
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir '.[controller]'

FROM ${PYTHON_IMAGE}
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["dlr", "controller"]
