"""The same questions before and after training, answered greedily with plain Transformers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from automoe.data.folder import PreparedFolder
from automoe.finetune.config import FinetuneConfig


@dataclass(frozen=True)
class Question:
    ids: list[int]  # everything up to where the answer begins
    shown: str
    reference: str | None  # the held-out answer, if there is one


def questions(
    config: FinetuneConfig, tokenizer: Any, held_out: PreparedFolder | None, most: int = 3
) -> list[Question]:
    """The user's prompts, or the first different held-out ones."""
    if config.prompts:
        return [Question(_prompt_ids(tokenizer, prompt), prompt, None) for prompt in config.prompts]
    found: dict[str, Question] = {}
    for ids, trained in held_out.documents() if held_out else ():
        start = int(np.argmax(trained))
        plain_text = start == 1 and bool(trained[1:].all())
        start = min(len(ids) // 2, 24) if plain_text else start
        if 0 < start < len(ids):
            asked = ids[:start].tolist()
            shown = _last_lines(tokenizer.decode(asked, skip_special_tokens=True))
            answer = ids[start:][trained[start:] == 1].tolist()
            found.setdefault(
                shown,
                Question(asked, shown, tokenizer.decode(answer, skip_special_tokens=True).strip()),
            )
        if len(found) == most:
            break
    return list(found.values())


def _prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": prompt}]
        return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return tokenizer(prompt)["input_ids"]


def _last_lines(prompt: str) -> str:
    """What was asked last: role names that the template prints stand on lines of their own."""
    lines = [
        line for line in prompt.strip().splitlines() if line.strip() not in ("user", "assistant", "model", "")
    ]
    return lines[-1][-300:] if lines else prompt.strip()[-300:]


def answers(
    model: Any, tokenizer: Any, asked: list[Question], max_new_tokens: int, stop_ids: list[int]
) -> list[str]:
    """Greedy answers of a Transformers model. An answer that did not stop by itself ends in an ellipsis."""
    import torch

    texts = []
    eos = sorted({*_listed(model.generation_config.eos_token_id), *stop_ids})
    for question in asked:
        ids = torch.tensor([question.ids], device=model.device)
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                eos_token_id=eos or None,
                pad_token_id=eos[0] if eos else 0,
            )
        new = out[0, ids.shape[1] :].tolist()
        text = tokenizer.decode(new, skip_special_tokens=True).strip()
        texts.append(text if new and new[-1] in eos else f"{text} ...")
    return texts


def _listed(ids: int | list[int] | None) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
