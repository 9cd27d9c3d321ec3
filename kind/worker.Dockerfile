# Image for node checks, and possible base of your own training image: Python and torch. The agent and the probes
# are injected. Built by kind/build.sh.
ARG PYTHON_IMAGE=python:3.13.14-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8
FROM ${PYTHON_IMAGE}
COPY kind/requirements /requirements
# Only wheels, as in kind/controller.Dockerfile.
RUN pip install --no-cache-dir --only-binary :all: --require-hashes -r /requirements/torch.txt
# torch needs the user's name and home. An image based on this one installs as USER root, and then switches back.
RUN useradd --uid 65532 --user-group --create-home worker && install -d -o worker -g worker /workspace
WORKDIR /workspace
USER 65532:65532
