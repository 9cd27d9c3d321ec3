# Image of the examples: the workers' image with numpy. Built from the repository's root by kind/build.sh.
ARG WORKER_IMAGE
FROM ${WORKER_IMAGE}
# The examples keep checkpoints in a directory of the node that belongs to root.
USER root
RUN pip install --no-cache-dir --only-binary :all: --require-hashes -r /requirements/examples.txt
COPY examples examples
