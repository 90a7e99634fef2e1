"""Answers from a model, token by token, on the terminal."""

import warnings
from pathlib import Path
from typing import Any

from automoe import FallbackWarning
from automoe.source import load_tokenizer, local_folder, quiet_transformers


class Generator:
    def __init__(self, model: str, device: str, chat_template: Path | None, *, raw: bool) -> None:
        import torch

        from automoe import AutoModelForCausalLM

        quiet_transformers()
        folder = local_folder(model)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = load_tokenizer(folder, chat_template)
        # NOTE: half precision is slower than float32 on most CPUs
        dtype = torch.float32 if device == "cpu" else "auto"
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.raw = raw or not self.tokenizer.chat_template

    def answer(
        self,
        prompt: str,
        history: list[dict[str, str]],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> str:
        """Prints the answer as it grows and returns it."""
        import torch
        from transformers import TextStreamer

        inputs: Any
        if self.raw:
            inputs = self.tokenizer(prompt, return_tensors="pt")
        else:
            chat = [*history, {"role": "user", "content": prompt}]
            inputs = self.tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
        inputs = inputs.to(self.model.device)
        sampling: dict[str, Any] = {
            "do_sample": False,
            "temperature": None,
            "top_p": None,
            "top_k": None,
        }
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        torch.manual_seed(seed)
        streamer = TextStreamer(self.tokenizer, skip_prompt=not self.raw, skip_special_tokens=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # the key-value cache is Transformers' by design
            out = self.model.generate(**inputs, max_new_tokens=max_new_tokens, streamer=streamer, **sampling)
        new = out[0, inputs["input_ids"].shape[1] :]
        return self.tokenizer.decode(new, skip_special_tokens=True).strip()
