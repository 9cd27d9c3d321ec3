# The controller: no torch, no compiler, not root. Built from the repository's root by kind/build.sh.
# For another base: --build-arg PYTHON_IMAGE=…@sha256:…; docs/install.md has the origin of this digest.
ARG PYTHON_IMAGE=python:3.13.14-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY kind/requirements /requirements
# Only wheels, by hash: to build a package from source, pip would fetch its build tools without hashes.
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
    && /venv/bin/pip install --no-index --no-deps /wheels/*.whl && /venv/bin/pip check

FROM ${PYTHON_IMAGE}
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["dlr", "controller"]
