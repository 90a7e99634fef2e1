"""`automoe finetune` with the real engine, in processes of its own: stopped, gone on with, and served."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers
from test_data_formats import write_jsonl
from test_finetune import ROWS, save_model

PACKAGE = Path(__file__).parents[2] / "python"
STEPS = 400


def start(folder, out):
    flags = [
        "--model",
        folder / "model",
        "--data",
        folder / "chats.jsonl",
        "--out",
        out,
        "--max-steps",
        STEPS,
    ]
    flags += ["--max-length", 96, "--gradient-accumulation-steps", 2, "--lr", 0.003, "--eval-split", 0.2]
    command = [
        sys.executable,
        "-m",
        "automoe",
        "finetune",
        *flags,
        "--router-aux-loss",
        "--max-new-tokens",
        4,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finished_steps(out):
    file = out / "metrics.jsonl"
    return file.read_text().count('"grad_norm"') if file.exists() else 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run unbroken and one broken by SIGTERM: the folder, and what the latter's processes said."""
    folder = tmp_path_factory.mktemp("engine")
    save_model(folder / "model")
    write_jsonl(folder / "chats.jsonl", ROWS)
    unbroken = start(folder, folder / "unbroken")
    stopped = start(folder, folder / "broken")
    deadline = time.monotonic() + 60
    while finished_steps(folder / "broken") < 20 and stopped.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    stopped.send_signal(signal.SIGTERM)
    first = stopped.communicate(timeout=60)[0]
    assert stopped.returncode == 0, first
    again = start(folder, folder / "broken")
    second = again.communicate(timeout=120)[0]
    assert again.returncode == 0, second
    assert unbroken.wait(timeout=120) == 0, unbroken.stdout.read()
    return folder, first, second


def test_sigterm_leaves_a_checkpoint_and_says_how_to_go_on(runs):
    folder, first, second = runs
    assert f"of {STEPS}; saved" in first and "go on with the same command" in first
    assert "went on from checkpoint-" in second
    assert not [file for file in (folder / "broken").rglob("*") if file.name.endswith((".tmp", ".part"))]


def test_a_stopped_run_ends_in_the_same_bits_as_an_unbroken_one(runs):
    folder, _, _ = runs
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("unbroken", "broken")]
    assert weights[0] == weights[1]
    curves = []
    for name in ("unbroken", "broken"):
        lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
        curves.append(
            [(line["step"], line["loss"], line["learning_rate"]) for line in lines if "loss" in line]
        )
    assert curves[0] == curves[1] and len(curves[0]) == STEPS


def test_the_result_is_a_plain_folder_that_learnt_its_chats_and_stops(runs):
    folder, _, _ = runs
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "broken")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "broken")
    chat = [{"role": "user", "content": ROWS[3]["prompt"]}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    prompt = torch.tensor([ids])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=60, do_sample=False)
    answer = tokenizer.decode(out[0, prompt.shape[1] :])
    assert answer.startswith("It is ") and answer.endswith("<|im_end|>"), answer
    record = json.loads((folder / "broken" / "run.json").read_text())
    assert record["eval_after"]["loss"] < 0.5 * record["eval_before"]["loss"]
    assert "logits agree" in record["verification"]
