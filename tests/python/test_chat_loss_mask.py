"""C3, C4: what is trained in a chat is the replies with their end tokens, nothing more and nothing less."""

import pytest
from automoe.data.encode import Encoder
from automoe.data.formats import Chat
from automoe.data.messages import RowError
from automoe.data.template import ChatTemplate, TemplateError
from tiny_tokenizers import make_tokenizer

END = {
    "chatml": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "qwen3": "<|im_end|>",
}
LOOK_UP = {"type": "function", "function": {"name": "look_up", "arguments": {"city": "Paris"}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
]


def chat(*contents, system=None, **kwargs):
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return Chat([{"role": "system", "content": system}] * (system is not None) + messages, **kwargs)


def trained_text(tokenizer, example):
    encoded = Encoder(tokenizer).encode(example)
    return tokenizer.decode([i for i, t in zip(encoded.ids, encoded.trained, strict=True) if t])


THREE_TURNS = chat("Hi", "Hello there", "What is 2+2?", "It is 4. Paris is nice too.", "Bye", "Bye bye")


def test_trained_text_is_the_replies_with_their_end_token_and_nothing_else(family, tokenizer):
    end, space = END[family], " " if family == "mistral" else ""
    expected = "".join(
        space + reply + end for reply in ("Hello there", "It is 4. Paris is nice too.", "Bye bye")
    )
    assert "{% generation %}" not in tokenizer.chat_template
    assert trained_text(tokenizer, THREE_TURNS) == expected


def test_ids_are_those_of_the_template_itself(tokenizer):
    expected = tokenizer.apply_chat_template(THREE_TURNS.messages, return_dict=False)
    assert Encoder(tokenizer).encode(THREE_TURNS).ids == expected


def test_end_tokens_of_other_roles_are_not_trained_though_they_are_the_same_token(family, tokenizer):
    encoded = Encoder(tokenizer).encode(THREE_TURNS)
    end = tokenizer.convert_tokens_to_ids(END[family])
    trained_ends = sum(t for i, t in zip(encoded.ids, encoded.trained, strict=True) if i == end)
    assert trained_ends == 3
    assert tokenizer.pad_token_id == tokenizer.eos_token_id  # C4: equal ids hide nothing


def test_the_first_token_is_never_a_target_and_bos_never_doubled(tokenizer):
    encoded = Encoder(tokenizer).encode(THREE_TURNS)
    assert not encoded.trained[0]
    assert tokenizer.bos_token_id is None or encoded.ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    "reply",
    ["Hi", "assistant", "<", "\n\nspaced out  ", "What is 2+2?", "[x] | y", "e\u0301 \U0001f600 ✓"],
)
def test_replies_that_look_like_the_text_around_them(family, tokenizer, reply):
    trained = trained_text(tokenizer, chat("assistant", reply, "What is 2+2?", reply))
    kept = reply if family in ("chatml", "qwen3") else reply.strip()
    parts = trained.split(END[family])
    assert len(parts) == 3 and parts[2] == ""
    assert parts[0].strip() == parts[1].strip() == kept.strip()


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "qwen3"])
def test_a_system_message_changes_nothing_but_the_prompt(name):
    tokenizer = make_tokenizer(name)
    plain, with_system = (
        chat("Hi", "Hello", "More", "Bye"),
        chat("Hi", "Hello", "More", "Bye", system="Be kind."),
    )
    assert trained_text(tokenizer, plain) == trained_text(tokenizer, with_system)


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen3"])
def test_a_tool_call_is_trained_and_the_tool_answer_is_not(name):
    tokenizer = make_tokenizer(name)
    example = Chat(
        [
            {"role": "user", "content": "Where is Paris?"},
            {"role": "assistant", "content": "", "tool_calls": [LOOK_UP]},
            {"role": "tool", "content": "SECRET"},
            {"role": "assistant", "content": "In France."},
            {"role": "user", "content": "Thanks"},
            {"role": "assistant", "content": "Welcome."},
        ],
        tools=TOOLS,
    )
    trained = trained_text(tokenizer, example)
    assert "look_up" in trained and '"city": "Paris"' in trained
    assert trained.count(END[name]) == 3
    assert not any(part in trained for part in ("SECRET", "Thanks", "Where", "user", "ipython", "properties"))


def test_thoughts_are_trained_with_their_block_where_the_template_prints_them(qwen3):
    example = chat("Hi", "<think>\nlong thoughts\n</think>\n\nHello", "More", "<think>\nnew\n</think>\n\nBye")
    assert trained_text(qwen3, example) == "Hello<|im_end|><think>\nnew\n</think>\n\nBye<|im_end|>"


def test_only_the_completion_of_a_conversational_prompt_is_trained(tokenizer, family):
    trained = trained_text(tokenizer, chat("Hi", "Hello", "More", "Bye", trained_from=3))
    assert trained.strip() == f"Bye{END[family]}"


def test_a_template_of_plain_words_still_shows_where_replies_are():
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}"
    encoded = Encoder(tokenizer).encode(chat("Hi", "Hello", "More", "Bye"))
    assert trained_text(tokenizer, chat("Hi", "Hello", "More", "Bye")) == "HelloBye"
    assert encoded.endless_turns == 2


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not print"),
        (
            "{% for m in messages %}<{{ m.content | upper }}>{% endfor %}",
            "does not print message 2",
        ),
        (
            "{% for m in messages %}{{ m.content if m.content | length == 1 else 0 }}{% endfor %}",
            "does not print message 2",
        ),
    ],
)
def test_a_template_that_defies_the_search_fails_loudly(template, error):
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = template
    with pytest.raises((TemplateError, RowError), match=error):
        Encoder(tokenizer).encode(chat("Hi", "Hello"))


def test_a_refusal_by_the_template_is_an_error_of_the_row():
    encoder = Encoder(make_tokenizer("gemma"))
    with pytest.raises(RowError, match="must alternate"):
        encoder.encode(
            Chat(
                [
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": "b"},
                    {"role": "assistant", "content": "c"},
                ]
            )
        )
    with pytest.raises(RowError, match="System role not supported"):
        encoder.encode(chat("a", "b", system="c"))


def test_control_tokens_inside_a_message_are_refused_by_name():
    with pytest.raises(RowError, match=r"message 1 holds the control token <\|im_end\|>"):
        Encoder(make_tokenizer("chatml")).encode(chat("Hi<|im_end|>", "Hello"))


def test_a_tokenizer_without_template_says_what_to_do():
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = None
    with pytest.raises(TemplateError, match="--chat-template"):
        ChatTemplate(tokenizer)
