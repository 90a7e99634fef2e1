"""Chat messages of every spelling as {role, content, ...}, the form chat templates expect."""

import json
from difflib import get_close_matches
from typing import Any

Message = dict[str, Any]

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "customer": "user",
    "question": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "answer": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
ROLE_KEYS = ("role", "from", "speaker", "author")
CONTENT_KEYS = ("content", "value", "text", "message")
EXTRA_KEYS = ("tool_calls", "tool_call_id", "name", "reasoning_content", "thinking")


class RowError(ValueError):
    """A row that cannot be used; the message says what is wrong with it, not where it is."""


def as_text(value: Any, name: str) -> str:
    """A string, or the joined text parts of OpenAI's list form."""
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        for part in value:
            if part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
                raise RowError(
                    f"'{name}' holds a part of type '{part.get('type')}'; only text can be trained"
                )
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise RowError(f"'{name}' must be text, got {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RowError(f"'{name}' is no valid UTF-8") from None
    return value


def normalise_messages(
    raw: Any, *, system: Any = None, default_role: str = "user", needs_assistant: bool = True
) -> list[Message]:
    """Messages with known roles and text contents. Throws RowError naming the message that is wrong."""
    if isinstance(raw, str):
        raw = _parse_or_wrap(raw, default_role)
    if not isinstance(raw, list):
        raise RowError(f"expected a list of messages, got {type(raw).__name__}")
    messages = [_message(value, number) for number, value in enumerate(raw, start=1)]
    if (
        system is not None
        and as_text(system, "system")
        and not (messages and messages[0]["role"] == "system")
    ):
        messages.insert(0, {"role": "system", "content": system})
    if not messages:
        raise RowError("has no messages")
    if needs_assistant and all(message["role"] != "assistant" for message in messages):
        raise RowError("has no assistant message, so nothing to train on")
    return messages


def _parse_or_wrap(raw: str, role: str) -> Any:
    if raw.lstrip().startswith("["):  # a list that went through CSV
        try:
            return json.loads(raw)
        except ValueError as error:
            raise RowError(f"the list of messages is no valid JSON: {error}") from None
    return [{"role": role, "content": raw}]


def _message(value: Any, number: int) -> Message:
    if not isinstance(value, dict):
        raise RowError(f"message {number} must be an object, got {type(value).__name__}")
    role = _role(value, number)
    message: Message = {"role": role}
    key = next((k for k in CONTENT_KEYS if value.get(k) is not None), None)
    extras = {k: value[k] for k in EXTRA_KEYS if value.get(k) not in (None, [], "")}
    if "tool_calls" in extras:
        extras["tool_calls"] = _tool_calls(extras["tool_calls"], number)
    if key is None and "tool_calls" not in extras:
        raise RowError(f"message {number} ({role}) has no content; expected one of {', '.join(CONTENT_KEYS)}")
    content = as_text(value[key], f"message {number} {key}") if key else ""
    if str(value.get("from")).lower() == "function_call":  # ShareGPT spells a tool call as a turn of its own
        content, extras = "", {**extras, "tool_calls": _tool_calls(f"[{content}]", number)}
    if role == "assistant" and not content.strip() and "tool_calls" not in extras:
        raise RowError(f"message {number} (assistant) is empty")
    return {**message, "content": content, **extras}


def _role(value: Message, number: int) -> str:
    key = next((k for k in ROLE_KEYS if value.get(k) is not None), None)
    if key is None:
        raise RowError(f"message {number} has no role; found {', '.join(map(str, value)) or 'nothing'}")
    role = value[key]
    known = ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    if known is None:
        near = get_close_matches(str(role).lower(), ROLES, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(ROLES)}"
        raise RowError(f"message {number} has the unknown role '{role}'{hint}")
    return known


def _tool_calls(calls: Any, number: int) -> list[dict[str, Any]]:
    """Calls with their arguments as objects: templates print strings too, but each in its own way."""
    if isinstance(calls, str):
        calls = _json(calls, number)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError(f"message {number}: 'tool_calls' must be a list of objects")
    return [_tool_call(call, number) for call in calls]


def _tool_call(call: dict[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(f"message {number}: a tool call needs a function name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _json(arguments, number)
    rest = {k: v for k, v in call.items() if k in ("id", "type") and v is not None}
    return {
        "type": "function",
        **rest,
        "function": {"name": function["name"], "arguments": arguments},
    }


def _json(text: str, number: int) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise RowError(f"message {number}: a tool call is no valid JSON: {error}") from None
