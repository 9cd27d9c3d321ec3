"""Parameter servers with TensorFlow: `dlr exec -- python3 train.py` in the Pods of chief, ps and workers.

The chief coordinates: it hands steps to the workers, whose variables live on the parameter servers. When one
of these is lost, its variables are too, and the chief's command is started again with the next cluster: it
connects anew and goes on from its checkpoint.
"""

import json
import os
import time

import tensorflow as tf

STEPS = int(os.environ.get("STEPS", "2000"))
AT_A_TIME = 10
SAVE_EVERY = 50
FEATURES, BATCH = 64, 32


def serve(task_type: str, task_index: int) -> None:
    """A worker or a parameter server: it does what the chief asks of it, until its Pod is to go."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    server = tf.distribute.Server(cluster, job_name=task_type, task_index=task_index, protocol="grpc")
    print(f"{task_type} {task_index} serves at {cluster.task_address(task_type, task_index)}", flush=True)
    server.join()


def coordinate(folder: str) -> None:
    """The chief: steps, in tens, and a checkpoint every 50."""
    print(f"TF_CONFIG {os.environ['TF_CONFIG']}", flush=True)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([FEATURES, 1]), name="weights")
        bias = tf.Variable(0.0, name="bias")
        done = tf.Variable(0, dtype=tf.int64, name="done")

    @tf.function
    def step() -> None:
        def replica() -> None:
            inputs = tf.random.normal([BATCH, FEATURES])
            wanted = tf.reduce_sum(inputs, axis=1, keepdims=True) + 1.0
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) + bias - wanted))
            for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
                variable.assign_sub(0.01 * gradient)

        strategy.run(replica)

    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(weights=weights, bias=bias, done=done), folder, max_to_keep=2
    )
    manager.restore_or_initialize()
    print(f"from step {int(done.numpy())} of {manager.latest_checkpoint}", flush=True)
    pause = float(os.environ.get("PAUSE", "0"))
    while (at := int(done.numpy())) < STEPS:
        for _ in range(AT_A_TIME):
            coordinator.schedule(step)
        coordinator.join()
        done.assign_add(AT_A_TIME)
        print(f"step {at + AT_A_TIME} at {time.time():.3f}", flush=True)
        if (at + AT_A_TIME) % SAVE_EVERY == 0:
            manager.save()
        time.sleep(pause)
    print(f"off by {float(tf.reduce_max(tf.abs(weights - 1.0))):.4f}", flush=True)


def main() -> None:
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if task["type"] == "chief":
        coordinate(os.environ["CHECKPOINT_DIR"])
    else:
        serve(task["type"], task["index"])


if __name__ == "__main__":
    main()
