# What the examples train in: the workers' image, and scikit-learn's digits. Built from the repository's root by
# kind/build.sh; a training image of your own needs torch and `pip install .`, nothing else from here.
ARG WORKER_IMAGE
FROM ${WORKER_IMAGE}
RUN pip install --no-cache-dir '/src[examples]'
WORKDIR /workspace
COPY examples examples
