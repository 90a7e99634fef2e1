"""Stands in for automoe.engine: the same interface, trained by Transformers, small and slow."""

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import torch
import transformers
from automoe.data.folder import PreparedFolder


class Trainer:
    made: ClassVar[list["Trainer"]] = []
    kill_after: int | None = None  # sends SIGTERM to this process after that many steps
    spoil_save = False

    def __init__(self, model, config, dtype="float32", device="cpu", lora=None):
        self.config, self.dtype, self.device = config, dtype, device
        self.source = Path(model)
        self.out = Path(config["output_dir"])
        checkpoints = sorted(self.out.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
        use = checkpoints[-1] if checkpoints and config["resume_from_checkpoint"] == "auto" else None
        self._resumed = int(use.name.split("-")[1]) if use else 0
        self.model = transformers.AutoModelForCausalLM.from_pretrained(use or model, dtype=torch.float32)
        self.data = PreparedFolder(config["train_data"])
        self.eval = PreparedFolder(config["eval_data"]) if "eval_data" in config else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config["learning_rate"])
        self._finished = self._resumed
        Trainer.made.append(self)

    def total_steps(self):
        return self.config["max_steps"] if self.config["max_steps"] > 0 else len(self.data)

    def finished_steps(self):
        return self._finished

    def resumed_step(self):
        return self._resumed

    def done(self):
        return self._finished >= self.total_steps()

    def _loss(self, ids, trained):
        labels = torch.tensor([[int(i) if t else -100 for i, t in zip(ids, trained, strict=True)]])
        return self.model(torch.tensor(ids.astype("int64"))[None], labels=labels).loss

    def step(self):
        began = time.monotonic()
        ids, trained = self.data.document(self._finished % len(self.data))
        loss = self._loss(ids, trained)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._finished += 1
        metrics = {
            "step": self._finished,
            "epoch": self._finished / len(self.data),
            "loss": loss.item(),
            "aux_loss": 0.0,
            "grad_norm": norm.item(),
            "learning_rate": self.config["learning_rate"],
            "tokens": len(ids),
            "labelled_tokens": int(trained.sum()),
            "seconds": time.monotonic() - began,
            "memory_gib": 1.5,
            "expert_load": [[3, 1, 0, 4], [2, 2, 2, 2]],
        }
        with open(self.out / "metrics.jsonl", "a") as file:
            file.write(json.dumps(metrics) + "\n")
        if self.kill_after == self._finished:
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    def evaluate(self):
        with torch.no_grad():
            losses = [self._loss(*document).item() for document in self.eval.documents()]
        loss = sum(losses) / len(losses)
        return {"loss": loss, "perplexity": math.exp(loss), "labelled_tokens": 1}

    def logits(self, ids):
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0]

    def save_checkpoint(self):
        folder = self.out / f"checkpoint-{self._finished}"
        self.model.save_pretrained(folder)
        return str(folder)

    def save_pretrained(self, folder):
        if self.spoil_save:
            with torch.no_grad():
                self.model.model.norm.weight.mul_(3)
        self.model.save_pretrained(folder)
