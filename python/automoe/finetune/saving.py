"""The saved folder: complete on its own, and proved to be by loading it with plain Transformers."""

import importlib.util
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


def complete_folder(
    folder: Path, source: Path, tokenizer: Any, eos_token_ids: list[int], *, new_template: bool
) -> None:
    """Adds what a server needs: tokenizer and template, and the end tokens that were trained."""
    if new_template or not (folder / "tokenizer_config.json").is_file():
        tokenizer.save_pretrained(folder)
    add_end_tokens(folder, source, eos_token_ids)


def end_tokens(folder: Path) -> list[int]:
    """The tokens that end an answer of the model in `folder`."""
    config, settings = (read_json(folder / name) for name in ("config.json", "generation_config.json"))
    old = settings.get("eos_token_id", config.get("eos_token_id"))
    return [] if old is None else [old] if isinstance(old, int) else list(old)


def add_end_tokens(folder: Path, source: Path, eos_token_ids: list[int]) -> None:
    """Generation stops at the end tokens of the model in `source` and at those the chats taught it."""
    known = end_tokens(source)
    ends = [*known, *(i for i in eos_token_ids if i not in known)]
    if not ends:
        return
    file = folder / "generation_config.json"
    config, settings = read_json(source / "config.json"), read_json(source / file.name)
    settings["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    for key in ("bos_token_id", "pad_token_id"):
        if settings.get(key) is None and config.get(key) is not None:
            settings[key] = config[key]
    write_json(file, settings)


def name_base_model(folder: Path, model: str) -> None:
    """The adapter in `folder` names the model as its user does: a repository id, or an absolute path."""
    file = folder / "adapter_config.json"
    path = Path(model)
    name = str(path.resolve()) if path.exists() else model
    write_json(file, {**read_json(file), "base_model_name_or_path": name})


def require_peft() -> None:
    if importlib.util.find_spec("peft") is None:
        raise ValueError(
            "[finetune] peft is not installed, and only it reloads adapters to prove them: pip install peft, "
            "or use --merge-adapter, or --no-verify without --prompts"
        )


def read_json(file: Path) -> dict[str, Any]:
    """The content of a file; empty where there is none."""
    return json.loads(file.read_text()) if file.is_file() else {}


def write_json(file: Path, content: dict[str, Any]) -> None:
    """The file holds the old content or the new one, whatever happens."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
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
