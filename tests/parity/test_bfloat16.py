"""bf16: no further from the fp32 truth than Transformers' own bf16 is."""

import functools
import statistics

import pytest
import torch
from oracle import FAMILIES, assert_on_engine, make_pair, norm, padded, run

SEEDS = range(8)
SLACK = 1.05  # on the mean over the seeds; the two round at different places, so a draw goes either way


@functools.cache
def errors(family: str, seed: int) -> dict[str, tuple[float, float]]:
    """What was measured -> (ours, Transformers'), relative to the truth."""
    plain, ours = make_pair(
        family, seed, torch.bfloat16, attention="sdpa", hidden_size=64, num_hidden_layers=3
    )
    truth, _ = make_pair(family, seed, hidden_size=64, num_hidden_layers=3)
    truth.load_state_dict(plain.state_dict())  # fp32 arithmetic on the weights as bf16 has them
    batch = padded("right", lengths=(31, 17, 24), seed=seed)
    real = batch["attention_mask"].bool()
    exact, theirs, found = (run(model, use_cache=False, **batch) for model in (truth, plain, ours))
    assert_on_engine(ours)

    def gradients(result):
        return torch.cat([grad.float().flatten() for grad in result.grads.values()])

    views = {
        "logits": lambda result: result.output.logits[real].float(),
        "loss": lambda result: result.output.loss,
        "gradients": gradients,
    }
    return {
        name: tuple(norm(view(x) - view(exact)) / norm(view(exact)) for x in (found, theirs))
        for name, view in views.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_distance_to_the_truth_is_that_of_transformers_or_less(family):
    measured = [errors(family, seed) for seed in SEEDS]
    for name in ("logits", "gradients"):
        ours, theirs = (sum(m[name][i] for m in measured) / len(measured) for i in (0, 1))
        assert theirs > 1e-4, "the reference shows no rounding: the test measures nothing"
        assert ours <= SLACK * theirs, f"{name}: {ours:.3e} against {theirs:.3e}"


def test_losses_are_no_further_from_the_truth_than_those_of_transformers():
    """A loss is one number, and rounding moves it either way: over all runs, ours may be further off only by
    what chance explains, two standard errors of the paired differences."""
    measured = [errors(family, seed)["loss"] for family in FAMILIES for seed in SEEDS]
    excess = [ours**2 - theirs**2 for ours, theirs in measured]
    chance = 2 * statistics.stdev(excess) / len(excess) ** 0.5
    assert statistics.mean(theirs for _, theirs in measured) > 1e-4
    assert statistics.mean(excess) <= chance, f"{statistics.mean(excess):.3e}, by chance {chance:.3e}"
