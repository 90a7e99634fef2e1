"""The chatterbot corpus as chats. Equal questions stand on one side of the split: held out means unseen."""

import json
import random
from collections import defaultdict
from pathlib import Path

import yaml

HELD_OUT = 60  # questions
MULTI_TURN = {
    "conversations.yml",
    "health.yml",
}  # elsewhere, further lines are other answers to the same question
# Chatter about a persona, not answers
SKIPPED = {"botprofile.yml", "ai.yml", "humor.yml", "emotion.yml", "gossip.yml", "psychology.yml"}


def write_chats(corpus: Path, train: Path, held_out: Path) -> tuple[int, int]:
    """Two JSONL files of messages. Returns how many chats each holds."""
    by_question: dict[str, list[list[str]]] = defaultdict(list)
    for file in sorted(corpus.glob("*.yml")):
        if file.name in SKIPPED:
            continue
        for lines in yaml.safe_load(file.read_text(encoding="utf-8"))["conversations"]:
            for turns in _chats([str(line).strip() for line in lines], multi_turn=file.name in MULTI_TURN):
                known = by_question[turns[0].lower()]
                if turns not in known:
                    known.append(turns)
    questions = sorted(by_question)
    random.Random(0).shuffle(questions)
    sides = (questions[HELD_OUT:], questions[:HELD_OUT])
    return _write(train, by_question, sides[0]), _write(held_out, by_question, sides[1])


def _chats(lines: list[str], *, multi_turn: bool) -> list[list[str]]:
    if len(lines) < 2 or not all(lines):
        return []
    if multi_turn:
        return [lines[: len(lines) // 2 * 2]]
    return [[lines[0], answer] for answer in lines[1:]]


def _write(file: Path, by_question: dict[str, list[list[str]]], questions: list[str]) -> int:
    chats = [turns for question in questions for turns in by_question[question]]
    rows = (
        {
            "messages": [
                {"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)
            ]
        }
        for turns in chats
    )
    temporary = file.with_suffix(".tmp")
    temporary.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    temporary.replace(file)
    return len(chats)
