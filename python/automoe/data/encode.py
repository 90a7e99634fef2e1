"""Examples to token ids with one flag a token: is it a training target?"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from automoe.data.formats import Chat, Completion, Example
from automoe.data.messages import RowError
from automoe.data.template import ChatTemplate, Rendered, special_tokens

Offsets = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Encoded:
    ids: list[int]
    trained: list[bool]  # never the first: nothing predicts it
    splittable: bool = False  # plain text may be cut into pieces, a chat may not
    endless_turns: int = 0  # trained turns after which the template prints no end token

    @property
    def num_trained(self) -> int:
        return sum(self.trained)


class Encoder:
    """Turns examples into ids. Needs a fast tokenizer, whose offsets tie tokens to characters."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                "[data] a fast tokenizer is needed (tokenizer.json); this one cannot tie tokens to text"
            )
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer) if tokenizer.chat_template else None
        self.eos_token_ids: set[int] = set()  # end tokens that were trained so far
        self._special_ids = set(tokenizer.convert_tokens_to_ids(list(special_tokens(tokenizer))))
        self._chat_ends: dict[str, int | None] = {}

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None

    def encode(self, example: Example) -> Encoded:
        if isinstance(example, Chat):
            return self._chat(example)
        if isinstance(example, Completion):
            return self._plain(example.prompt + example.completion, len(example.prompt), splittable=False)
        return self._plain(example.text, 0, splittable=True)

    def _chat(self, chat: Chat) -> Encoded:
        template = self.template or ChatTemplate(self.tokenizer)  # throws what is missing
        rendered = template.render(chat)
        # The template writes the first special token itself; a tokenizer that adds one would double it
        ids, offsets = self._tokens(rendered.text, add_special_tokens=False)
        self._note_ends(rendered)
        trained = covered(offsets, [(span.start, span.end) for span in rendered.spans])
        endless = sum(not span.end_of_turn for span in rendered.spans)
        return Encoded(ids, _without_first(trained), endless_turns=endless)

    def _plain(self, text: str, trained_from: int, *, splittable: bool) -> Encoded:
        ids, offsets = self._tokens(text, add_special_tokens=True)
        trained = covered(offsets, [(trained_from, len(text))])
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if bos is not None and ids[:2] == [bos, bos]:  # the text brought its own
            ids, trained = ids[1:], trained[1:]
        if eos is not None:
            if not ids or ids[-1] != eos:
                ids, trained = [*ids, eos], [*trained, True]
            trained[-1] = True
            self.eos_token_ids.add(eos)
        return Encoded(ids, _without_first(trained), splittable)

    def _tokens(self, text: str, *, add_special_tokens: bool) -> tuple[list[int], Offsets]:
        out = self.tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            return_offsets_mapping=True,
            truncation=False,
            verbose=False,
        )
        if not out["input_ids"]:
            raise RowError("has no tokens")
        return list(out["input_ids"]), out["offset_mapping"]

    def _note_ends(self, rendered: Rendered) -> None:
        for end in {span.end_of_turn.strip() for span in rendered.spans} - {""}:
            if end not in self._chat_ends:
                ids = self.tokenizer(end, add_special_tokens=False)["input_ids"]
                is_stop = (
                    len(ids) == 1 or ids[-1] in self._special_ids
                )  # only a single token can stop a generation
                self._chat_ends[end] = ids[-1] if is_stop else None
            if self._chat_ends[end] is not None:
                self.eos_token_ids.add(self._chat_ends[end])


def covered(offsets: Offsets, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Which tokens share a character with a span. By position, so an end token counts where it ends a
    reply and nowhere else, whatever its id. Spans ascend."""
    starts = [start for start, _ in spans]
    flags = []
    for begin, end in offsets:
        last = max(end, begin + 1) - 1  # the last character of the token
        at = bisect_right(starts, last) - 1
        flags.append(at >= 0 and begin < spans[at][1] and end > begin)
    return flags


def _without_first(trained: list[bool]) -> list[bool]:
    return [False, *trained[1:]]
