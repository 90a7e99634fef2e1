"""One full fine-tuning step, automoe next to Transformers: same config, tokens, optimizer; a process a side.

Each side with its own AdamW, or both with torch's (--optim torch). Prints tokens/s, milliseconds, peak
memory and the ratio. Every side takes the same number of warm-up and timed steps; the median counts.
Example: python benchmarks/step.py --case qwen3_moe_30b_12l --batch 2
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {
    # Qwen3-30B-A3B's published geometry, 12 of its 48 layers.
    "qwen3_moe_30b_12l": dict(
        model_type="qwen3_moe",
        hidden_size=2048,
        num_hidden_layers=12,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        moe_intermediate_size=768,
        intermediate_size=6144,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        vocab_size=151936,
        max_position_embeddings=40960,
        rope_theta=1e6,
    ),
    # gpt-oss-20b, 8 of its 24 layers.
    "gpt_oss_20b_8l": dict(
        model_type="gpt_oss",
        num_hidden_layers=8,
        num_local_experts=32,
        num_experts_per_tok=4,
    ),
    # Moonlight-16B-A3B, 10 of its 27 layers, the first of them dense.
    "moonlight_16b_10l": dict(
        model_type="deepseek_v3",
        hidden_size=2048,
        num_hidden_layers=10,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        intermediate_size=11264,
        moe_intermediate_size=1408,
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_shared_experts=2,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.446,
        norm_topk_prob=True,
        vocab_size=163840,
        max_position_embeddings=8192,
        rope_theta=5e4,
        rms_norm_eps=1e-5,
    ),
    # Nemotron-3-Nano-30B-A3B, the first 13 of its 52 blocks.
    "nemotron3_nano_13l": dict(
        model_type="nemotron_h",
        hidden_size=2688,
        hybrid_override_pattern="MEMEM*EMEMEM*",
        num_hidden_layers=13,
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        mamba_num_heads=64,
        mamba_head_dim=64,
        ssm_state_size=128,
        n_groups=8,
        conv_kernel=4,
        chunk_size=128,
        n_routed_experts=128,
        num_experts_per_tok=6,
        n_shared_experts=1,
        moe_intermediate_size=1856,
        moe_shared_expert_intermediate_size=3712,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        vocab_size=131072,
        max_position_embeddings=262144,
    ),
    # Llama-3-8B, 8 of its 32 layers.
    "llama3_8b_8l": dict(
        model_type="llama",
        hidden_size=4096,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
    ),
    # A model that a laptop steps in a second.
    "mixtral_tiny": dict(
        model_type="mixtral",
        hidden_size=576,
        num_hidden_layers=6,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=49152,
        max_position_embeddings=2048,
    ),
}


def build(side: str, case: str, device: str, dtype):
    import torch
    from transformers import AutoConfig

    fields = dict(CASES[case])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    if side == "automoe":
        from automoe import AutoModelForCausalLM
    else:
        from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.train(), config


def profile(step) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        step()
    print(record.key_averages().table(sort_by="self_device_time_total", row_limit=40), file=sys.stderr)


def measure(args: argparse.Namespace) -> dict:
    import torch

    cuda = args.device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    model, config = build(args.side, args.case, args.device, dtype)
    if args.side == "automoe" and args.optim == "automoe":
        from automoe import AdamW

        optimizer = AdamW(model.parameters(), lr=1e-5)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=cuda)
    generator = torch.Generator().manual_seed(1)
    shape = (args.batch, args.length)
    batches = [torch.randint(0, config.vocab_size, shape, generator=generator) for _ in range(4)]
    batches = [ids.to(args.device) for ids in batches]
    times, losses, norms = [], [], []

    def step(i: int = 0) -> float:
        ids = batches[i % len(batches)]
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if i == 0:
            norms.append(torch.nn.utils.get_total_norm(p.grad for p in model.parameters()).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for i in range(args.warmup + args.steps):
        if cuda and i == args.warmup:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        losses.append(step(i))
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if args.profile:
        profile(step)
    seconds = statistics.median(times[args.warmup :])
    return {
        "tokens_per_s": args.batch * args.length / seconds,
        "ms_per_step": 1000 * seconds,
        "first_step_s": times[0],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "device_peak_gib": torch.cuda.max_memory_reserved() / 2**30 if cuda else None,
        "first_grad_norm": norms[0],
        "losses": [round(loss, 4) for loss in losses],
        "path": repr(getattr(model, "automoe", "Transformers")),
    }


def run_side(side: str, argv: list[str]) -> dict:
    command = [sys.executable, __file__, *argv, "--side", side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, default="mixtral_tiny")
    parser.add_argument("--device", default=None, help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, help="tokens a row; default 4096 on cuda, 256 on cpu")
    parser.add_argument(
        "--optim",
        choices=["automoe", "torch"],
        default="automoe",
        help="AdamW of our side; both keep moments in the parameters' dtype",
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="a kernel table of one step on stderr")
    parser.add_argument("--side", choices=["automoe", "transformers"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device is None:
        import torch

        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.length = args.length or (4096 if args.device == "cuda" else 256)
    if args.side:
        print(json.dumps(measure(args)))
        return
    results = {side: run_side(side, sys.argv[1:]) for side in ("transformers", "automoe")}
    for side, result in results.items():
        first = f"first loss {result['losses'][0]:.4f}, gradient norm {result['first_grad_norm']:.4f}"
        memory = f"{result['peak_gib']:.1f} GiB" if result["peak_gib"] else "-"
        speed = f"{result['tokens_per_s']:10.0f} tokens/s {result['ms_per_step']:9.1f} ms"
        print(f"{side:13} {speed}  peak {memory}  {first}")
    ours, theirs = results["automoe"], results["transformers"]
    print(f"ratio {ours['tokens_per_s'] / theirs['tokens_per_s']:.2f}x", end="")
    print(f", memory {ours['peak_gib'] / theirs['peak_gib']:.0%}" if ours["peak_gib"] else "")
    print(json.dumps({"case": args.case, "batch": args.batch, "length": args.length, **results}))


if __name__ == "__main__":
    main()
