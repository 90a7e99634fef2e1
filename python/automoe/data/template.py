"""A chat as its template prints it, and which characters of that text are assistant replies.

Released templates seldom mark what the assistant says. The marks are found from outside: the chat is
printed again with one content replaced by a character that occurs nowhere else, and the place where the
two prints part is where that content begins. No assumption is made about what a template looks like;
whatever cannot be proved on the printed text is an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from automoe.data.formats import Chat
from automoe.data.messages import Message, RowError

MARK = "\ue0f7"  # private use: in no text and no vocabulary


class TemplateError(ValueError):
    """The template itself defies the search for replies; no row could be trained with it."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of the print: one reply and its end-of-turn token, `end_of_turn` "" if none."""

    start: int
    end: int
    end_of_turn: str


@dataclass(frozen=True)
class Rendered:
    text: str
    spans: list[Span]


class ChatTemplate:
    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                "[data] the tokenizer has no chat template to print chats with; pass --chat-template FILE"
            )
        self._tokenizer = tokenizer
        # Longest first, so that <|end|> never hides <|end_of_text|>
        self._specials = sorted(special_tokens(tokenizer), key=len, reverse=True)
        self._ends: dict[bool, str] = {}
        self._lead: str | None = None

    def render(self, chat: Chat) -> Rendered:
        for number, message in enumerate(chat.messages, start=1):
            self._refuse_control_tokens(message, number)
        text = self._print(chat.messages, chat)
        spans = [
            self._span(text, chat, i)
            for i, message in enumerate(chat.messages)
            if message["role"] == "assistant" and i >= chat.trained_from
        ]
        for before, after in pairwise(spans):
            if before.end > after.start:
                raise RowError("the chat template prints assistant messages out of order")
        return Rendered(text, spans)

    def prompt(self, messages: list[Message], **kwargs: Any) -> str:
        """The chat up to where the next reply begins, for generation."""
        return self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **kwargs
        )

    def end_of_turn(self, *, last: bool) -> str:
        """What follows a reply in the last or an earlier turn, found on a chat of our own; "" if nothing."""
        if last not in self._ends:
            turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
            closed, opened = (self._print(t, Chat(turns)) for t in (turns, [*turns, turns[0]]))
            if MARK not in closed:
                raise TemplateError("[data] the chat template does not print what the assistant says")
            tail, in_between = closed.rpartition(MARK)[2], opened.rpartition(MARK)[2]
            if in_between.startswith(tail.rstrip()) and tail.rstrip():
                self._ends[last] = tail.rstrip()  # closes the last turn as it closes an earlier one
            else:
                self._ends[last] = self._first_special(tail if last else in_between)
        return self._ends[last]

    @property
    def lead(self) -> str:
        """White space that a template prints before a reply and not in the prompt: the model must say it."""
        if self._lead is None:
            turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
            prompt = self._print(turns[:1], Chat(turns), add_generation_prompt=True)
            before = self._print(turns, Chat(turns)).partition(MARK)[0]
            gap = before[len(prompt) :] if before.startswith(prompt) else ""
            self._lead = gap if gap.isspace() else ""
        return self._lead

    def _span(self, text: str, chat: Chat, i: int) -> Span:
        message = chat.messages[i]
        start = self._start(text, chat, i)
        limit = self._inside_next(text, chat, i)
        end_of_turn = self.end_of_turn(last=i + 1 == len(chat.messages))
        at = text.rfind(end_of_turn, start, limit) if end_of_turn else -1
        if at < 0:
            end = self._end_without_token(text, chat, i, start)
            end_of_turn = next((token for token in self._specials if text.endswith(token, start, end)), "")
        else:
            end = at + len(end_of_turn)
        self._prove(text[start:end], message, i)
        return Span(start, end, end_of_turn)

    def _start(self, text: str, chat: Chat, i: int) -> int:
        message = chat.messages[i]
        for plain in (
            message,
            {"role": "assistant"},
        ):  # some templates print a call instead of a content
            try:
                marked = self._print(_replaced(chat.messages, i, MARK, plain), chat)
            except RowError:
                continue  # an answer of a tool may need the call before it
            start = _common(text, marked)
            if marked[start:].lstrip().startswith(MARK) and not _has_reasoning(message):
                return start - len(self.lead) if text[:start].endswith(self.lead) else start
        # The block around thoughts is part of what the model must say: all that follows its prompt
        prompt = self._print(chat.messages[:i], chat, add_generation_prompt=True) if i else ""
        if prompt and text.startswith(prompt):
            return len(prompt)
        if marked[start:].lstrip().startswith(MARK):
            return start
        raise RowError(
            f"the chat template prints message {i + 1} (assistant) otherwise than it stands, near "
            f"'{text[max(0, start - 20) : start + 20]}'; train on prompt + completion instead"
        )

    def _inside_next(self, text: str, chat: Chat, i: int) -> int:
        """A place in the print that lies behind the header of message i + 1 and before its end."""
        if i + 1 == len(chat.messages):
            return len(text)
        following = chat.messages[i + 1]["content"]
        half = len(following) // 2  # in the middle: templates look at how a content begins and ends
        marked = self._print(
            _replaced(chat.messages, i + 1, following[:half] + MARK + following[half:]), chat
        )
        return _common(text, marked)

    def _end_without_token(self, text: str, chat: Chat, i: int, start: int) -> int:
        if "tool_calls" in chat.messages[i]:
            closed = self._print(chat.messages[: i + 1], chat).rstrip()
            if not text.startswith(closed):
                raise RowError(
                    f"the chat template prints the tool call of message {i + 1} otherwise once it is answered"
                )
            if closed.endswith(tuple(self._specials)):  # gpt-oss: a call ends otherwise than a reply
                return len(closed)
            return len(closed) + len(
                self._first_special(text[len(closed) :])
            )  # GLM: the answer's header ends it
        content = chat.messages[i]["content"]
        marked = self._print(_replaced(chat.messages, i, content + MARK), chat)
        return max(start, _common(text, marked))

    def _prove(self, trained: str, message: Message, i: int) -> None:
        names = [call["function"]["name"] for call in message.get("tool_calls", [])]
        reply = message["content"].rpartition("</think>")[2].strip()
        if any(part not in trained for part in (names or [reply])):
            raise RowError(f"the chat template does not print message {i + 1} (assistant) as it stands")

    def _print(self, messages: list[Message], chat: Chat, **kwargs: Any) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=chat.tools, tokenize=False, **{**chat.template_kwargs, **kwargs}
            )
        except Exception as error:  # Jinja raises whatever the template raises
            raise RowError(f"the chat template refuses it: {error}") from None

    def _first_special(self, tail: str) -> str:
        """A special token that stands straight after a reply, white space before it included."""
        bare = tail.lstrip()
        found = next((token for token in self._specials if bare.startswith(token)), "")
        return tail[: len(tail) - len(bare)] + found if found else ""

    def _refuse_control_tokens(self, message: Message, number: int) -> None:
        for value in _strings(message):
            found = next((token for token in self._specials if token in value), None)
            if found:
                raise RowError(f"message {number} holds the control token {found} as text; remove it")
            if MARK in value:
                raise RowError(f"message {number} holds the private character U+E0F7; remove it")


def special_tokens(tokenizer: Any) -> set[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)


def _common(a: str, b: str) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _replaced(messages: list[Message], i: int, content: str, message: Message | None = None) -> list[Message]:
    return [*messages[:i], {**(message or messages[i]), "content": content}, *messages[i + 1 :]]


def _has_reasoning(message: Message) -> bool:
    return "</think>" in message["content"] or "reasoning_content" in message or "thinking" in message


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
