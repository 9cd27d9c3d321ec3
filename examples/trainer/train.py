"""Fine-tuning with Hugging Face's Trainer: one changed line gives checkpoints in memory.

By default a small GPT-2 with random weights learns to count, so that the example needs no download;
`MODEL=gpt2` fine-tunes that model from the Hub, and any other causal model in the same way.
"""

import os
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dlr.integrations.transformers import train

MODEL = os.environ.get("MODEL")
OUT = os.environ.get("OUT", "/data/trainer")
STEPS = int(os.environ.get("STEPS", "2000"))
LENGTH, VOCABULARY = 32, 64


class Counting(Dataset[dict[str, Any]]):
    """Sequences that count up by one, from anywhere. Put your tokenized dataset in its place."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = (torch.arange(LENGTH) + index) % VOCABULARY
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    if MODEL:
        model = AutoModelForCausalLM.from_pretrained(MODEL)
    else:
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)
        )
    arguments = TrainingArguments(
        output_dir=OUT,
        max_steps=STEPS,  # not epochs, so that another number of workers continues at the right place
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=20,
        save_strategy="no",  # dlr saves; for an export at the end see below
        report_to=[],
        ddp_backend=None if torch.cuda.is_available() else "gloo",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting())
    train(trainer, f"{OUT}/checkpoints", persist_every=100)  # instead of trainer.train()
    trainer.save_model(f"{OUT}/model")


if __name__ == "__main__":
    main()
