"""The training engine for Python: a thin handle on torch.classes.automoe.Trainer."""

import json
from pathlib import Path
from typing import Any

import torch

from automoe.library import ops


def load() -> None:
    """Loads libautomoe.so; ImportError says what is wrong and what to do."""
    ops()


class Trainer:
    """Fine-tuning of a Hugging Face folder on prepared data, one optimizer step per `step()`.

    `config` holds the fields of TrainConfig (include/automoe/trainer.h); an unknown key raises ValueError
    naming the nearest known one. `dtype`: auto (the model's), float32 or bfloat16. `device`: cpu or cuda.
    `lora`: the fields of LoraConfig (include/automoe/lora.h): only adapters are trained and saved.
    """

    def __init__(
        self,
        model: str | Path,
        config: dict[str, Any],
        *,
        dtype: str = "auto",
        device: str = "cpu",
        lora: dict[str, Any] | None = None,
    ) -> None:
        ops()
        self._device = device
        self._trainer = torch.classes.automoe.Trainer(
            str(model), json.dumps(config), dtype, device, json.dumps(lora) if lora else ""
        )

    def step(self) -> dict[str, Any]:
        """The metrics of one optimizer step (StepMetrics); `expert_load` is a list per MoE layer."""
        numbers, load_per_layer = self._trainer.step()
        counts = ("step", "tokens", "labelled_tokens")
        metrics: dict[str, Any] = {k: int(v) if k in counts else v for k, v in numbers.items()}
        return {**metrics, "expert_load": load_per_layer.tolist()}

    def evaluate(self) -> dict[str, float]:
        """loss, perplexity and labelled_tokens over the held-out data."""
        return dict(self._trainer.evaluate())

    def logits(self, input_ids: list[int]) -> torch.Tensor:
        """[S, V] for one sequence, without gradients."""
        return self._trainer.logits(torch.tensor([input_ids], device=self._device))[0]

    def save_checkpoint(self) -> str:
        return self._trainer.save_checkpoint()

    def save_pretrained(self, folder: str) -> None:
        self._trainer.save_pretrained(str(folder))

    def merge_adapter(self) -> None:
        """Adds the adapters to the weights, so that save_pretrained writes the whole model. Ends training."""
        self._trainer.merge_adapter()

    def total_steps(self) -> int:
        return self._trainer.total_steps()

    def finished_steps(self) -> int:
        return self._trainer.finished_steps()

    def resumed_step(self) -> int:
        """The step this run goes on from; 0 for a fresh start."""
        return self._trainer.resumed_step()

    def done(self) -> bool:
        return self.finished_steps() >= self.total_steps()
