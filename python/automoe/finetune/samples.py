"""The same questions before and after training, answered greedily with plain Transformers."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from automoe.data.folder import PreparedFolder
from automoe.finetune.config import FinetuneConfig

LOOKED_AT = 500  # held-out documents


@dataclass(frozen=True)
class Question:
    ids: list[int]  # everything up to where the answer begins
    shown: str
    reference: str | None  # the held-out answer, if there is one


def questions(
    config: FinetuneConfig, tokenizer: Any, held_out: PreparedFolder | None, most: int = 3
) -> list[Question]:
    """The user's prompts, or the first different held-out ones."""
    found: dict[str, Question] = {}
    for ids, trained in islice(held_out.documents() if held_out else (), LOOKED_AT):
        question = _held_out(tokenizer, ids, trained)
        found.setdefault(question.shown, question)
    if not config.prompts:
        return list(found.values())[:most]
    known = {shown: question.reference for shown, question in found.items()}
    return [Question(_prompt_ids(tokenizer, p), p, known.get(p)) for p in config.prompts]


def _held_out(tokenizer: Any, ids: np.ndarray, trained: np.ndarray) -> Question:
    start = int(np.argmax(trained))
    if trained[1:].all():  # plain text: what follows its beginning
        start = max(1, min(len(ids) // 2, 24))
    answer = ids[start:][trained[start:] == 1].tolist()
    shown = _last_lines(tokenizer.decode(ids[:start].tolist(), skip_special_tokens=True))
    return Question(ids[:start].tolist(), shown, tokenizer.decode(answer, skip_special_tokens=True).strip())


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
