"""What a row means: a chat, a prompt with its completion, or plain text. One shape for every spelling."""

import json
from dataclasses import dataclass, field
from typing import Any

from automoe.data.messages import Message, RowError, as_text, normalise_messages

ACCEPTED = (
    "messages (chat), conversations (ShareGPT), prompt + completion, instruction [+ input] + output, text"
)


@dataclass(frozen=True)
class Chat:
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    trained_from: int = 0  # assistant messages before this one are context only
    template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    prompt: str
    completion: str


@dataclass(frozen=True)
class Text:
    text: str


Example = Chat | Completion | Text


def parse_row(values: dict[str, Any], *, chat: bool) -> Example:
    """The example in a row. `chat`: prompts and instructions become chats; there is a chat template."""
    kind = detect(values)
    if kind == "messages":
        key = "messages" if values.get("messages") is not None else "conversations"
        return Chat(
            normalise_messages(values[key], system=values.get("system")),
            _tools(values),
            0,
            _kwargs(values),
        )
    if kind == "text":
        return Text(_required_text(values, "text"))
    if kind == "instruction":
        return _instruction(values, chat=chat)
    return _prompt(values, chat=chat)


def detect(values: dict[str, Any]) -> str:
    """messages | prompt | instruction | text, by the columns that hold something."""
    has = {name for name, value in values.items() if value is not None}
    if has & {"messages", "conversations"}:
        return "messages"
    if {"prompt", "completion"} <= has:
        return "prompt"
    if {"instruction", "output"} <= has:
        return "instruction"
    if "text" in has:
        return "text"
    found = ", ".join(sorted(map(str, values))) or "none"
    raise RowError(f"no known columns: found {found}; accepted are {ACCEPTED}")


def _instruction(values: dict[str, Any], *, chat: bool) -> Example:
    instruction, output = _required_text(values, "instruction"), _required_text(values, "output")
    context = as_text(values.get("input"), "input") if values.get("input") else ""
    prompt = f"{instruction}\n\n{context}" if context else instruction
    if chat:
        return _one_turn(values, prompt, output)
    return Completion(f"### Instruction:\n{prompt}\n\n### Response:\n", output)


def _prompt(values: dict[str, Any], *, chat: bool) -> Example:
    prompt, completion = values["prompt"], values["completion"]
    if isinstance(prompt, list) or isinstance(completion, list):
        before = normalise_messages(prompt, system=values.get("system"), needs_assistant=False)
        after = normalise_messages(completion, default_role="assistant")
        return Chat([*before, *after], _tools(values), len(before), _kwargs(values))
    if chat:
        return _one_turn(values, _required_text(values, "prompt"), _required_text(values, "completion"))
    return Completion(as_text(prompt, "prompt"), _required_text(values, "completion"))


def _one_turn(values: dict[str, Any], user: str, assistant: str) -> Chat:
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return Chat(
        normalise_messages(messages, system=values.get("system")),
        _tools(values),
        0,
        _kwargs(values),
    )


def _required_text(values: dict[str, Any], name: str) -> str:
    text = as_text(values[name], name)
    if not text.strip():
        raise RowError(f"'{name}' is empty")
    return text


def _tools(values: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = values.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise RowError(f"'tools' is no valid JSON: {error}") from None
    if tools in (None, []):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(f"'tools' must be a list of JSON schemas, got {type(tools).__name__}")
    return tools


def _kwargs(values: dict[str, Any]) -> dict[str, Any]:
    kwargs = values.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, dict):
        raise RowError(f"'chat_template_kwargs' must be an object, got {type(kwargs).__name__}")
    return kwargs
