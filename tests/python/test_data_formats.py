"""C6: every usual spelling of a chat is read, and a row that cannot be is named with its reason."""

import csv
import gzip
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from automoe.data import PrepareConfig, PreparedFolder, prepare
from automoe.data.formats import Chat, Completion, Text, parse_row
from automoe.data.messages import RowError

QA = [("Hi", "Hello."), ("What is Paris?", "A city.")]
FORMATS = {
    "messages": lambda q, a: {
        "messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    },
    "sharegpt": lambda q, a: {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]},
    "aliases": lambda q, a: {"messages": [{"role": "Customer", "text": q}, {"speaker": "bot", "message": a}]},
    "model": lambda q, a: {
        "conversations": [{"role": "prompter", "content": q}, {"from": "model", "value": a}]
    },
    "parts": lambda q, a: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": q}]},
            {"role": "ai", "content": a},
        ]
    },
    "prompt": lambda q, a: {"prompt": q, "completion": a},
    "turns": lambda q, a: {
        "prompt": [{"role": "user", "content": q}],
        "completion": [{"role": "assistant", "content": a}],
    },
    "alpaca": lambda q, a: {"instruction": q, "input": "", "output": a},
}


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(path, tokenizer, **kwargs):
    config = PrepareConfig(path, path.parent / "prepared", **{"eval_split": 0.0, **kwargs})
    summary = prepare(config, tokenizer)
    return [d[0].tolist() for d in PreparedFolder(config.out / "train").documents()], summary


def test_equal_content_gives_equal_ids_in_every_format(tmp_path, tokenizer):
    ids = {}
    for name, make in FORMATS.items():
        path = write_jsonl(tmp_path / f"{name}.jsonl", [make(q, a) for q, a in QA])
        ids[name], _ = prepared(path, tokenizer)
    assert len(ids["messages"]) == 2
    assert all(other == ids["messages"] for other in ids.values()), ids


def test_equal_content_gives_equal_ids_in_every_kind_of_file(tmp_path, qwen3):
    rows = [{"prompt": q, "completion": a} for q, a in QA]
    jsonl = write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "wrapped.json").write_text(json.dumps({"data": rows}))
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as out:
        out.write(jsonl.read_bytes())
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8-sig") as out:
        writer = csv.DictWriter(out, ["prompt", "completion"])
        writer.writeheader()
        writer.writerows(rows)
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(tmp_path / "saved_dict")
    (tmp_path / "folder").mkdir()
    write_jsonl(tmp_path / "folder" / "1.jsonl", rows[:1])
    write_jsonl(tmp_path / "folder" / "2.jsonl", rows[1:])
    expected, _ = prepared(jsonl, qwen3)
    for name in (
        "a.json",
        "wrapped.json",
        "a.jsonl.gz",
        "a.parquet",
        "a.csv",
        "saved",
        "saved_dict",
        "folder",
    ):
        assert prepared(tmp_path / name, qwen3)[0] == expected, name


BAD = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistants", "content": "b"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}]},
]


def test_bad_rows_stop_the_run_and_both_are_named(tmp_path, qwen3):
    good = FORMATS["messages"](*QA[0])
    path = write_jsonl(tmp_path / "bad.jsonl", [good, BAD[0], good, BAD[1]])
    with pytest.raises(ValueError) as error:
        prepared(path, qwen3)
    message = str(error.value)
    assert f"{path}:2: message 2 has the unknown role 'assistants'; did you mean 'assistant'?" in message
    assert f"{path}:4: message 2 (assistant) has no content" in message
    assert "--on-error skip" in message
    assert not (tmp_path / "prepared" / "train").exists()
    assert not list((tmp_path / "prepared").glob(".*"))


def test_bad_rows_can_be_skipped_and_are_listed(tmp_path, qwen3):
    good = FORMATS["messages"](*QA[0])
    path = tmp_path / "bad.jsonl"
    write_jsonl(path, [good, BAD[0], good, BAD[1]])
    path.write_text(path.read_text() + '{"messages": [}\n')
    documents, summary = prepared(path, qwen3, on_error="skip")
    assert len(documents) == 2
    assert summary.splits["train"].bad_rows == 3
    listed = [json.loads(line) for line in (tmp_path / "prepared" / "dropped.jsonl").read_text().splitlines()]
    assert [problem["row"] for problem in listed] == [2, 4, 5]
    assert "no valid JSON" in listed[2]["reason"]


def test_unknown_columns_list_those_found_and_those_accepted():
    with pytest.raises(RowError, match=r"found answer, query; accepted are messages .* text"):
        parse_row({"query": "a", "answer": "b"}, chat=True)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "has no messages"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no assistant message"),
        ({"messages": ["a"]}, "message 1 must be an object, got str"),
        ({"messages": [{"content": "a"}]}, "message 1 has no role; found content"),
        ({"messages": [{"role": 7, "content": "a"}]}, "unknown role '7'"),
        ({"messages": [{"role": "assistant", "content": 3}]}, "must be text, got int"),
        (
            {"messages": [{"role": "assistant", "content": " "}]},
            r"message 1 \(assistant\) is empty",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "part of type 'image'"),
        ({"messages": "[{]"}, "no valid JSON"),
        ({"text": ""}, "'text' is empty"),
        ({"text": "a\udc80"}, "no valid UTF-8"),
        ({"prompt": "a", "completion": 1}, "'completion' must be text, got int"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "needs a function name",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a"}], "tools": "{"},
            "'tools' is no valid JSON",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row, reason):
    with pytest.raises(RowError, match=reason):
        parse_row(row, chat=True)


def test_rows_without_chat_template_stay_plain_text():
    assert parse_row({"prompt": "a", "completion": "b"}, chat=False) == Completion("a", "b")
    assert parse_row({"text": "a", "id": 3}, chat=True) == Text("a")
    alpaca = parse_row({"instruction": "Add", "input": "1 1", "output": "2"}, chat=False)
    assert isinstance(alpaca, Completion) and alpaca.prompt.endswith("Add\n\n1 1\n\n### Response:\n")


def test_sharegpt_function_calls_and_system_prompts_are_understood():
    row = {
        "system": "Be brief.",
        "conversations": [
            {"from": "human", "value": "Where?"},
            {"from": "function_call", "value": '{"name": "f", "arguments": "{\\"a\\": 1}"}'},
            {"from": "observation", "value": "there"},
            {"from": "gpt", "value": "There."},
        ],
    }
    example = parse_row(row, chat=True)
    assert isinstance(example, Chat)
    assert [m["role"] for m in example.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert example.messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}


def test_csv_rows_of_the_wrong_width_are_named_with_their_line(tmp_path, qwen3):
    path = tmp_path / "a.csv"
    path.write_text('prompt,completion\n"two\nlines",b\nonly\na,b,c\n')
    _, summary = prepared(path, qwen3, on_error="skip")
    problems = [(p.row, p.reason.split(" than")[0]) for p in summary.problems.found]
    assert problems == [(4, "has fewer fields"), (5, "has more fields")]
