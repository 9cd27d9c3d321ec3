"""Saves or loads a small training with torch.distributed.checkpoint, and knows nothing of dlr.

save FORM=AT…     a model and an optimizer in each form: stateful, state_dict, named, ddp
load AT OUT       what a checkpoint has of them, as JSON
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model after one step, with gradients that are no rounding errors: Adam makes whole steps of such."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    (model(torch.randn(5, 3)) * torch.randn(5, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(*places: str) -> None:
    for place in places:
        save_form(*place.split("=", 1))


def save_form(form: str, at: str) -> None:
    model, optimizer = trained()
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "epoch": 7}
    if form == "state_dict":
        state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    elif form == "named":
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)
    elif form == "ddp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        state["model"] = nn.parallel.DistributedDataParallel(model).state_dict()
        dist.destroy_process_group()
    dcp.save(state, checkpoint_id=at)


def load(at: str, out: str) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer), "step": 0}
    dcp.load(state, checkpoint_id=at)
    moments = state["optimizer"]["state"]["0.weight"]["exp_avg"]
    found = {
        "step": state["step"],
        "weight": state["model"]["0.weight"].tolist(),
        "moments": moments.tolist(),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"save": save, "load": load}[sys.argv[1]](*sys.argv[2:])
    assert "dlr.checkpoint" not in sys.modules
