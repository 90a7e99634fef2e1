"""Prepared folders: lengths, flags, splits, what is counted, and what a crash leaves behind."""

import json
import os

import numpy as np
import pytest
from automoe.data import PrepareConfig, PreparedFolder, PreparedWriter, prepare
from automoe.data.prepare import fingerprint, is_held_out
from test_data_formats import prepared, write_jsonl
from tiny_tokenizers import make_tokenizer


def text_of(tokenizer, tokens):
    """Plain text of exactly `tokens` tokens, the end token included."""
    bos = int(tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id)
    return "zq" * ((tokens - 1 - bos) // 2) + "z" * ((tokens - 1 - bos) % 2)


def test_the_first_token_of_a_document_is_not_trained_as_the_continuation_of_the_one_before(tmp_path, qwen3):
    """C2: documents of 4, 9 and 1 tokens have 3 + 8 + 0 targets."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text_of(qwen3, n)} for n in (4, 9)])
    documents, summary = prepared(path, qwen3)
    assert [len(d) for d in documents] == [4, 9]
    assert summary.splits["train"].trained_tokens == 11
    writer = PreparedWriter(tmp_path / "one")
    for n in (4, 9, 1):
        writer.add([5] * n, [False] + [True] * (n - 1))
    assert writer.finish()["trained_tokens"] == 11
    assert PreparedFolder(tmp_path / "one").lengths().tolist() == [4, 9, 1]


def test_a_row_with_nothing_to_train_is_found_before_training_and_counted(tmp_path):
    tokenizer = make_tokenizer("qwen3")
    tokenizer.eos_token = None
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "z"}, {"text": "zqz"}])
    documents, summary = prepared(path, tokenizer)
    assert [len(d) for d in documents] == [3]
    assert summary.splits["train"].nothing_to_train == 1
    assert "a.jsonl:1: has no token to train on" in summary.problems.describe()


def test_the_real_end_token_is_trained_though_it_is_also_the_pad_token(tmp_path, tokenizer):
    """C4: the flag goes by position; here both rows end in the id that pads."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text_of(tokenizer, n)} for n in (3, 7)])
    config = PrepareConfig(path, tmp_path / "out", eval_split=0)
    prepare(config, tokenizer)
    documents = list(PreparedFolder(tmp_path / "out" / "train").documents())
    assert [len(ids) for ids, _ in documents] == [3, 7]
    for ids, trained in documents:
        assert ids[-1] == tokenizer.pad_token_id and trained[-1] == 1
        assert trained[0] == 0 and trained[1:].all()


def test_bos_is_never_doubled_nor_the_end(tmp_path):
    tokenizer = make_tokenizer("llama3")
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "<|begin_of_text|>Hi<|eot_id|>"}, {"text": "Hi"}])
    documents, _ = prepared(path, tokenizer)
    assert documents[0] == documents[1]


@pytest.mark.parametrize("tokens", [31, 32, 33, 64, 65, 97])
def test_long_text_is_split_into_consecutive_pieces_and_loses_nothing_but_what_cannot_be_trained(
    tmp_path, qwen3, tokens
):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text_of(qwen3, tokens)}])
    documents, summary = prepared(path, qwen3, max_length=32)
    whole, _ = prepared(path, qwen3)
    joined = [i for d in documents for i in d]
    assert whole[0][: len(joined)] == joined and len(whole[0]) - len(joined) <= 1
    assert max(map(len, documents)) <= 32
    split = summary.splits["train"]
    assert split.split_rows == (tokens > 32) and split.extra_pieces == len(documents) - 1


def test_long_chats_are_dropped_and_named_unless_told_otherwise(tmp_path, qwen3):
    rows = [{"prompt": "Hi", "completion": "Yes"}, {"prompt": "Hi", "completion": "no " * 50}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    documents, summary = prepared(path, qwen3, max_length=48)
    assert len(documents) == 1 and summary.splits["train"].dropped_overlong == 1
    assert "a.jsonl:2: has " in summary.problems.describe()
    with pytest.raises(
        ValueError, match=r"(?s)a.jsonl:2: has \d+ tokens, more than max_length 48.*--overlong"
    ):
        prepared(path, qwen3, max_length=48, overlong="stop")
    documents, summary = prepared(path, qwen3, max_length=48, overlong="truncate")
    assert len(documents[1]) == 48 and summary.splits["train"].truncated == 1
    documents, summary = prepared(path, qwen3, max_length=48, overlong="split")
    assert len(documents) > 2 and max(map(len, documents)) == 48


def test_held_out_rows_are_never_trained_and_equal_rows_stay_together(tmp_path, qwen3):
    rows = [{"text": f"row {i % 50}"} for i in range(200)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    prepare(PrepareConfig(path, tmp_path / "out", eval_split=0.3), qwen3)
    sides = [
        {bytes(d[0]) for d in PreparedFolder(tmp_path / "out" / n).documents()} for n in ("train", "eval")
    ]
    assert len(sides[0]) + len(sides[1]) == 50 and not sides[0] & sides[1]
    assert sum(is_held_out({"text": str(i)}, 0.1, 42) for i in range(5000)) == pytest.approx(500, abs=80)


def test_no_row_vanishes_uncounted(tmp_path, qwen3):
    rows = (
        [{"text": "a" * n} for n in (3, 30, 90)]
        + [{"prompt": "q", "completion": "a" * n} for n in (2, 90)]
        + [{"x": 1}]
    )
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    summary = prepare(
        PrepareConfig(path, tmp_path / "out", eval_split=0.4, max_length=40, on_error="skip"), qwen3
    )
    for s in summary.splits.values():
        assert s.rows == s.documents - s.extra_pieces + s.bad_rows + s.dropped_overlong + s.nothing_to_train
    assert sum(s.rows for s in summary.splits.values()) == 6


def test_the_folder_has_the_fixed_format(tmp_path, qwen3):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "Hi", "completion": "Yes"}] * 3)
    prepare(PrepareConfig(path, tmp_path / "out", eval_split=0), qwen3)
    folder = tmp_path / "out" / "train"
    meta = json.loads((folder / "meta.json").read_text())
    tokens = np.fromfile(folder / "tokens.bin", "<u4")
    trained = np.fromfile(folder / "trained.bin", np.uint8)
    offsets = np.fromfile(folder / "offsets.bin", "<i8")
    assert (meta["format"], meta["version"], meta["documents"]) == ("automoe-data", 1, 3)
    assert len(tokens) == len(trained) == meta["tokens"] == offsets[-1] and offsets[0] == 0
    assert trained.sum() == meta["trained_tokens"] and len(offsets) == 4
    assert meta["max_document"] == np.diff(offsets).max()
    assert meta["vocab_size"] == len(qwen3) and tokens.max() < len(qwen3)
    assert meta["eos_token_ids"] == [qwen3.convert_tokens_to_ids("<|im_end|>")]


def test_the_end_of_turn_of_the_template_is_recorded_beside_that_of_plain_text(tmp_path):
    """C5: gemma's chats end in another token than its texts."""
    tokenizer = make_tokenizer("gemma")
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "Hi", "completion": "Yes"}, {"text": "abc"}])
    _, summary = prepared(path, tokenizer)
    assert summary.eos_token_ids == sorted(tokenizer.convert_tokens_to_ids(["<eos>", "<end_of_turn>"]))


def test_a_crash_leaves_the_old_folder_or_none(tmp_path):
    writer = PreparedWriter(tmp_path / "train")
    writer.add([1, 2], [False, True])
    assert not (tmp_path / "train").exists()
    writer.finish()
    broken = PreparedWriter(tmp_path / "train")
    broken.add([1, 2, 3], [False, True, True])
    broken.discard()
    assert len(PreparedFolder(tmp_path / "train")) == 1
    assert os.listdir(tmp_path) == ["train"]


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    for pid in (2**22 + 5, os.getppid()):  # no process has the first number
        (tmp_path / f".train.{pid}.tmp").mkdir()
    PreparedWriter(tmp_path / "train").discard()
    assert os.listdir(tmp_path) == [f".train.{os.getppid()}.tmp"]


def test_a_truncated_folder_is_refused_with_the_file_and_the_sizes(tmp_path):
    writer = PreparedWriter(tmp_path / "train")
    writer.add([1, 2], [False, True])
    writer.finish()
    (tmp_path / "train" / "tokens.bin").write_bytes(b"1234")
    with pytest.raises(ValueError, match=r"tokens\.bin has 4 bytes, expected 8"):
        PreparedFolder(tmp_path / "train")


def test_the_fingerprint_follows_sources_settings_and_template(tmp_path, qwen3):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    config = PrepareConfig(path, tmp_path / "out")
    first = fingerprint(config, qwen3)
    assert first == fingerprint(PrepareConfig(path, tmp_path / "elsewhere"), make_tokenizer("qwen3"))
    assert first != fingerprint(PrepareConfig(path, tmp_path / "out", max_length=7), qwen3)
    assert first != fingerprint(config, make_tokenizer("chatml"))
    write_jsonl(path, [{"text": "ab"}])
    assert first != fingerprint(config, qwen3)
