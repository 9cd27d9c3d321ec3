# What the examples train in: torch, scikit-learn's digits, and `dlr run`. Built from the repository's root by
# kind/build.sh; a training image of your own needs torch and `pip install .`, nothing else from here.
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
COPY agent agent
COPY localcluster localcluster
COPY dlr dlr
RUN pip install --no-cache-dir '.[examples]'
WORKDIR /workspace
COPY examples examples
