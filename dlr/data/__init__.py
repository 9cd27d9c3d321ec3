"""Elastic data loading: each sample once per epoch, and the same steps at any world size.

    sampler = ElasticBatchSampler(dataset, global_batch_size=512, micro_batch_size=32)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    sampler.load_state_dict(checkpoint["data"])

    while sampler.epoch < epochs:
        for batch in sampler.global_batches(loader):
            optimizer.zero_grad()
            for micro in batch:
                inputs, targets = micro.data
                with micro.accumulate(model):
                    loss = cross_entropy(model(inputs), targets)
                    (loss * micro.weight).backward()
            optimizer.step()
            ...  # now and then, on rank 0: save {"data": sampler.state_dict(), "model": ...}

A step is a slice of the epoch's order, the global batch; the world only decides which rank computes which
part. So its gradient does not depend on the number of ranks, and a checkpoint only needs the epoch and the
number of its samples that are done. docs/data.md lists what is exact, and what is not.
"""

from __future__ import annotations

from dlr.data.epochs import GlobalBatch, MicroBatch
from dlr.data.sampler import ElasticBatchSampler
from dlr.data.shards import ElasticShards
from dlr.data.stream import ElasticStream

__all__ = ["ElasticBatchSampler", "ElasticShards", "ElasticStream", "GlobalBatch", "MicroBatch"]
