"""The C++ example as a user builds it: an installed automoe, find_package, a folder in and a folder out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

ROOT = Path(__file__).resolve().parents[2]
CMAKE = Path(sys.executable).parent / "cmake"


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def prepared(folder: Path, documents: list[list[int]]) -> None:
    folder.mkdir(parents=True)
    tokens = np.concatenate([np.array(d, dtype="<u4") for d in documents])
    tokens.tofile(folder / "tokens.bin")
    np.ones(len(tokens), dtype=np.uint8).tofile(folder / "trained.bin")
    np.cumsum([0, *map(len, documents)]).astype("<i8").tofile(folder / "offsets.bin")
    meta = {
        "format": "automoe-data",
        "version": 1,
        "tokens": len(tokens),
        "documents": len(documents),
        "trained_tokens": len(tokens),
        "max_document": max(map(len, documents)),
        "vocab_size": 64,
        "eos_token_ids": [0],
    }
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_folders = [f for f in (ROOT / "build").glob("*") if (f / "libautomoe.so").exists()]
    if not build_folders or shutil.which("g++") is None:
        pytest.skip("needs a build of the engine and a C++ compiler")
    work = tmp_path_factory.mktemp("example")
    run(CMAKE, "--install", build_folders[0], "--prefix", work / "site")
    torch_folder = Path(torch.__file__).parent
    run(
        CMAKE, "-S", ROOT / "examples" / "cpp", "-B", work / "build",
        f"-DCMAKE_PREFIX_PATH={work / 'site'}", f"-DAUTOMOE_TORCH_DIR={torch_folder}",
    )  # fmt: skip
    run(CMAKE, "--build", work / "build")
    return work / "build" / "finetune"


def test_a_cpp_program_finetunes_a_folder_that_transformers_loads(example: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=128,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path / "model")
    documents = [[(start + i) % 64 for i in range(20)] for start in range(30)]
    prepared(tmp_path / "data" / "train", documents)
    prepared(tmp_path / "data" / "eval", documents[:3])
    out = run(example, tmp_path / "model", tmp_path / "data", tmp_path / "out", "8")
    losses = [float(line.split()[3]) for line in out.splitlines() if line.startswith("step")]
    assert len(losses) == 8 and losses[-1] < losses[0]
    trained, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = torch.tensor(documents[:3])
    assert trained(ids, labels=ids).loss.item() < losses[0]


def test_a_cpp_program_names_what_is_wrong_and_exits_with_1(example: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    done = subprocess.run(
        [example, tmp_path, tmp_path, tmp_path / "out"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 1
    assert "BertModel" in done.stderr and "MixtralForCausalLM" in done.stderr


def test_the_example_stays_under_100_lines() -> None:
    assert len((ROOT / "examples" / "cpp" / "finetune.cpp").read_text().splitlines()) < 100
