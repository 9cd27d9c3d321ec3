"""JAX over several Pods: `dlr exec --each-round -- python3 train.py` in the Pods of the workers.

In each round of the job's world the command is started anew, and told where its coordinator is, how many
processes there are, and which of them it is. It goes on from the checkpoint of process 0.
"""

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import multihost_utils

STEPS = int(os.environ.get("STEPS", "200"))
PAUSE_SECONDS = float(os.environ.get("PAUSE", "0"))
SAVE_EVERY = 10
CHECKPOINT = Path(os.environ["CHECKPOINT_DIR"]) / "weights.npz"
FEATURES, BATCH = 16, 32


def loss(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    return jnp.mean((inputs @ weights - jnp.sum(inputs, axis=1)) ** 2)


def save(weights: jax.Array, step: int) -> None:
    scratch = CHECKPOINT.with_name("scratch.npz")
    numpy.savez(scratch, weights=weights, step=step)
    scratch.replace(CHECKPOINT)


def load() -> tuple[jax.Array, int]:
    if not CHECKPOINT.exists():
        return jnp.zeros(FEATURES), 0
    saved = numpy.load(CHECKPOINT)
    return jnp.asarray(saved["weights"]), int(saved["step"])


def main() -> None:
    # JAX takes the coordinator from JAX_COORDINATOR_ADDRESS itself, and the other two as arguments.
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
    )
    rank, size = jax.process_index(), jax.process_count()
    weights, step = load()
    print(f"process {rank} of {size} goes on from step {step} at {time.time():.3f}", flush=True)
    gradient_of = jax.jit(jax.grad(loss))
    while step < STEPS:
        step += 1
        inputs = jax.random.normal(jax.random.key(step * size + rank), (BATCH, FEATURES))
        gradients = multihost_utils.process_allgather(gradient_of(weights, inputs))
        weights = weights - 0.05 * jnp.mean(gradients, axis=0)
        if step % SAVE_EVERY == 0:
            print(f"step {step} at {time.time():.3f}", flush=True)
            if rank == 0:
                save(weights, step)
        time.sleep(PAUSE_SECONDS)
    print(f"off by {float(jnp.max(jnp.abs(weights - 1.0))):.4f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
