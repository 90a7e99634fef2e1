"""Loading a checkpoint: the engine next to a plain parallel read of the same files and next to Transformers.

Writes a random Qwen3-MoE of about --gb gigabytes under --dir, or takes --folder as it is, and loads it in a
fresh process per measurement, with the files in the page cache (warm) and, where the system lets go of
them, read from the disk (cold). Prints the median GB/s of each side and its ratio to the plain read, which
reads the files with as many threads into memory of the same size.
Example: python benchmarks/load_checkpoint.py --gb 1.5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK = 16 << 20


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def write_model(folder: Path, gigabytes: float) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    layers = max(1, round(gigabytes * 1e9 / 312e6))  # a layer of 64 experts takes 312 MB in bf16
    config = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=4096,
        hidden_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=2048,
        moe_intermediate_size=768,
        num_experts=64,
        num_experts_per_tok=8,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.view(torch.int16).random_(-(2**13), 2**13)  # finite in bf16, and quick
    model.save_pretrained(folder, max_shard_size="1GB")


def plain_read(folder: Path, threads: int) -> float:
    import torch

    began = time.perf_counter()
    jobs = []
    for path in weight_files(folder):
        file, size = os.open(path, os.O_RDONLY), path.stat().st_size
        memory = memoryview(torch.empty(size, dtype=torch.uint8).numpy())
        jobs += [(file, memory[at : at + BLOCK], at) for at in range(0, size, BLOCK)]

    def read(job: tuple[int, memoryview, int]) -> None:
        file, memory, at = job
        while memory:
            got = os.preadv(file, [memory], at)
            memory, at = memory[got:], at + got

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, jobs))
    return time.perf_counter() - began


def engine_load(folder: Path, dtype: str) -> float:
    import torch
    from automoe import library
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    names = [name for name, _ in model.named_parameters()]
    began = time.perf_counter()
    tensors = [torch.empty(p.shape, dtype=p.dtype) for p in model.parameters()]
    library.load_checkpoint(str(folder), config.to_json_string(use_diff=False), names, tensors)
    return time.perf_counter() - began


def transformers_load(folder: Path, dtype: str) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    began = time.perf_counter()
    AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return time.perf_counter() - began


def drop_from_cache(folder: Path) -> None:
    for path in weight_files(folder):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def bring_into_cache(folder: Path) -> None:
    for path in weight_files(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(BLOCK):
                pass


def memory_now() -> int:
    with open("/proc/self/statm") as statm:
        # NOTE: resident less shared: pages of a mapped file belong to the page cache.
        resident, shared = map(int, statm.read().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def measure(side: str, folder: Path, dtype: str, threads: int) -> dict:
    # Every side begins from the same process: imports done, as much memory in use.
    from automoe import library
    from transformers.models.qwen3_moe import modeling_qwen3_moe  # noqa: F401

    library.ops()
    sides = {
        "plain": lambda: plain_read(folder, threads),
        "automoe": lambda: engine_load(folder, dtype),
        "transformers": lambda: transformers_load(folder, dtype),
    }
    peak, done = memory_now(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, memory_now())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    seconds = sides[side]()
    done.set()
    watcher.join()
    return {"seconds": seconds, "peak_gb": peak / 1e9}


def measure_apart(side: str, folder: Path, args: argparse.Namespace) -> dict:
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
    command += ["--dtype", args.dtype, "--threads", str(args.threads)]
    quiet = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=quiet)
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(folder: Path, args: argparse.Namespace) -> None:
    size = sum(path.stat().st_size for path in weight_files(folder))
    print(f"{folder}: {len(weight_files(folder))} files, {size / 1e9:.2f} GB, {args.threads} threads")
    for state, prepare in (("warm", bring_into_cache), ("cold", drop_from_cache)):
        runs: dict[str, list[dict]] = {"plain": [], "automoe": [], "transformers": []}
        for _ in range(args.repeats):  # in turn, so that a busy moment of the machine hits every side
            for side, results in runs.items():
                prepare(folder)
                results.append(measure_apart(side, folder, args))
        plain = statistics.median(run["seconds"] for run in runs["plain"])
        for side, results in runs.items():
            seconds = statistics.median(run["seconds"] for run in results)
            peak = max(run["peak_gb"] for run in results)
            rate = f"{size / seconds / 1e9:6.2f} GB/s, {plain / seconds:5.0%} of the plain read"
            print(f"  {state} {side:12s} {rate}, peak {peak:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.5, help="size of the model that is written")
    parser.add_argument("--dir", default=None, help="where; default: the system's folder for temporary files")
    parser.add_argument("--folder", type=Path, help="a model folder to load instead")
    parser.add_argument("--dtype", default="bfloat16", help="of the parameters in memory")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--side", choices=["plain", "automoe", "transformers"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.folder, args.dtype, args.threads)))
    elif args.folder:
        compare(args.folder, args)
    else:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            write_model(Path(folder), args.gb)
            compare(Path(folder), args)


if __name__ == "__main__":
    main()
