"""The saved folder: complete on its own, and proved to be by loading it with plain Transformers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of the largest logit. fp32: summation order; bf16: what Transformers' own backends differ by
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Verification:
    max_difference: float  # largest |engine - Transformers| over the largest |logit|
    same_choice: float  # share of positions with the same most likely token
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.max_difference <= self.tolerance

    def __str__(self) -> str:
        verdict = "agree" if self.agrees else "DIFFER"
        return (
            f"logits {verdict}: largest difference {self.max_difference:.1e} of the largest logit "
            f"(limit {self.tolerance:.0e}), same choice at {100 * self.same_choice:.1f}% of positions"
        )


def complete_folder(folder: Path, tokenizer: Any, eos_token_ids: list[int], *, new_template: bool) -> None:
    """Adds what a server needs: tokenizer and template, and the end tokens that were trained."""
    if new_template or not (folder / "tokenizer_config.json").is_file():
        tokenizer.save_pretrained(folder)
    add_end_tokens(folder, eos_token_ids)


def add_end_tokens(folder: Path, eos_token_ids: list[int]) -> None:
    """Generation stops at the model's own end tokens and at those the chats taught it."""
    file = folder / "generation_config.json"
    config = json.loads((folder / "config.json").read_text())
    settings = json.loads(file.read_text()) if file.is_file() else {}
    old = settings.get("eos_token_id", config.get("eos_token_id"))
    known = [] if old is None else [old] if isinstance(old, int) else list(old)
    ends = [*known, *(i for i in eos_token_ids if i not in known)]
    if not ends:
        return
    settings["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    for key in ("bos_token_id", "pad_token_id"):
        if settings.get(key) is None and config.get(key) is not None:
            settings[key] = config[key]
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(settings, indent=2) + "\n")
    temporary.replace(file)


def load_plain(folder: Path, dtype: str, device: str) -> Any:
    """The model as a user of Transformers gets it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return model.to(device).eval()


def compare(model: Any, ids: list[int], expected: Any, dtype: str) -> Verification:
    """Plain Transformers' logits [S, V] against the engine's for the same ids."""
    import torch

    with torch.no_grad():
        got = model(torch.tensor([ids], device=model.device)).logits[0].float().cpu()
    expected = expected.reshape(got.shape).float().cpu()
    difference = (got - expected).abs().max() / expected.abs().max().clamp_min(1e-9)
    same = (got.argmax(-1) == expected.argmax(-1)).float().mean()
    return Verification(float(difference), float(same), TOLERANCE[dtype])
