# What the examples train in: the workers' image, and numpy. Built from the repository's root by
# kind/build.sh.
ARG WORKER_IMAGE
FROM ${WORKER_IMAGE}
# They keep their checkpoints in a directory of the node, which is root's.
USER root
RUN pip install --no-cache-dir --only-binary :all: --require-hashes -r /requirements/examples.txt
COPY examples examples
