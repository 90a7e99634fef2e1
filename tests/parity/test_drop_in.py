"""The object is the Transformers model it claims to be, in every attribute that somebody may look at."""

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import automoe
import pytest
import torch
import transformers
from automoe import AutoModelForCausalLM
from oracle import FAMILIES, OTHERS, assert_on_engine, make_config, make_pair, tokens

Plain = transformers.AutoModelForCausalLM
OURS = {"_automoe_config", "_automoe_source"}  # the attributes that we add


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        torch.manual_seed(0)
        config = make_config(family, bos_token_id=1, eos_token_id=[2, 3], pad_token_id=0)
        model = Plain.from_config(config, dtype=torch.bfloat16)
        model.generation_config.temperature = 0.7
        model.generation_config.do_sample = True
        model.save_pretrained(root / family)
    return root


def assert_same_object(ours, plain):
    assert describe(ours) == describe(plain)
    assert ours.config.to_dict() == plain.config.to_dict()
    assert ours.generation_config.to_dict() == plain.generation_config.to_dict()
    for (name, module), (other_name, other) in zip(ours.named_modules(), plain.named_modules(), strict=True):
        assert name == other_name and type(module).__name__ == type(other).__name__
        assert vars(module).keys() - OURS == vars(other).keys(), name
        for key in vars(other).keys() - {
            "_modules",
            "_parameters",
            "_buffers",
            "_weight_conversions",
            "config",
        }:
            assert str(vars(module)[key]) == str(vars(other)[key]), (name, key)
        for kind in ("_parameters", "_buffers"):
            for key, expected in vars(other)[kind].items():
                assert_same_tensor(vars(module)[kind][key], expected, f"{name}.{key}")


def assert_same_tensor(found, expected, name):
    if expected is None:
        assert found is None, name
        return
    assert type(found) is type(expected) and found.dtype == expected.dtype, name
    assert found.device == expected.device and found.requires_grad == expected.requires_grad, name
    assert found.is_contiguous() and vars(found) == vars(expected) and torch.equal(found, expected), name


def describe(model):
    return {
        "class": (type(model).__name__, type(model).__module__, type(model).__qualname__),
        "state": [(name, x.dtype, x.shape) for name, x in model.state_dict().items()],
        "parameters": [name for name, _ in model.named_parameters()],
        "training": {m.training for m in model.modules()},
        "tied": model.all_tied_weights_keys,
        "device_map": getattr(model, "hf_device_map", None),
        "attention": model.config._attn_implementation,
        "text": str(model),
        "dtype": model.dtype,
        "path": model.name_or_path,
    }


LOADS = {
    "plainly": {},
    "dtype": {"dtype": torch.float32},
    "dtype_by_name": {"dtype": "float16"},
    "dtype_auto": {"dtype": "auto"},
    "torch_dtype": {"torch_dtype": torch.float32},
    "cpu": {"device_map": "cpu"},
    "map": {"device_map": {"": "cpu"}},
    "auto": {"device_map": "auto"},
    "attention": {"attn_implementation": "eager"},
    "experts": {"experts_implementation": "eager"},
    "config_value": {"use_cache": False, "initializer_range": 1e-3},
    "tied": {"tie_word_embeddings": True},
    "local": {"local_files_only": True, "trust_remote_code": False},
}


if torch.cuda.is_available():
    LOADS |= {
        "cuda": {"device_map": "cuda"},
        "number": {"device_map": 0},
        "cuda_map": {"device_map": {"": 0}},
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_from_pretrained_leaves_what_transformers_leaves(family, load, folders):
    arguments = LOADS[load]
    plain = Plain.from_pretrained(folders / family, **arguments)
    ours = AutoModelForCausalLM.from_pretrained(folders / family, **arguments)
    assert_same_object(ours, plain)
    assert isinstance(ours, type(plain)) and isinstance(ours, transformers.PreTrainedModel)


@pytest.mark.parametrize("family", FAMILIES)
def test_from_config_draws_the_weights_that_transformers_draws(family):
    models = []
    for auto in (Plain, AutoModelForCausalLM):
        torch.manual_seed(5)
        models.append(auto.from_config(make_config(family), dtype=torch.bfloat16))
    assert_same_object(models[1], models[0])


def test_a_config_object_and_loading_info(folders):
    folder = folders / "Qwen3MoeForCausalLM"
    config = transformers.AutoConfig.from_pretrained(folder, router_aux_loss_coef=0.5)
    plain, expected = Plain.from_pretrained(folder, config=config, output_loading_info=True)
    ours, info = AutoModelForCausalLM.from_pretrained(folder, config=config, output_loading_info=True)
    assert info == expected
    assert_same_object(ours, plain)
    assert ours.router_aux_loss_coef == 0.5


def test_a_state_dict_instead_of_files(folders):
    plain = Plain.from_pretrained(folders / "LlamaForCausalLM")
    ours = AutoModelForCausalLM.from_config(plain.config)
    again = type(ours).from_pretrained(None, config=plain.config, state_dict=plain.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), plain.parameters(), strict=True))
    again(tokens(1, 4), labels=tokens(1, 4))
    assert_on_engine(again)


def test_a_repo_id_comes_out_of_the_hub_cache(folders, tmp_path):
    snapshot = tmp_path / "models--some--model" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("0" * 40)
    snapshot.symlink_to(folders / "Qwen3MoeForCausalLM")
    arguments = {"cache_dir": tmp_path, "local_files_only": True}
    ours = AutoModelForCausalLM.from_pretrained("some/model", **arguments)
    assert_same_object(ours, Plain.from_pretrained("some/model", **arguments))


REMOTE = """
from transformers import LlamaForCausalLM

class Doubling(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 2 * output.logits
        return output
"""


def test_a_model_with_code_of_its_own_keeps_it_and_tells_that_it_is_not_native(
    folders, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    plain = Plain.from_pretrained(folders / "LlamaForCausalLM", dtype=torch.float32)
    plain.config.auto_map = {"AutoModelForCausalLM": "modeling_doubling.Doubling"}
    plain.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "modeling_doubling.py").write_text(REMOTE)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert type(ours).__name__ == "Doubling"
    with pytest.warns(automoe.FallbackWarning, match="Doubling has no native implementation"):
        found = ours(tokens(1, 5)).logits
    torch.testing.assert_close(found, 2 * plain(tokens(1, 5)).logits)


def test_the_forward_signature_is_that_of_transformers():
    for family in FAMILIES:
        plain, ours = make_pair(family)
        assert inspect.signature(ours.forward) == inspect.signature(plain.forward)
        assert inspect.signature(type(ours).forward) == inspect.signature(type(plain).forward)
        assert ours.can_generate() and ours.loss_type == "ForCausalLM"


@pytest.mark.parametrize("copier", ["deepcopy", "pickle", "torch_save"])
@pytest.mark.parametrize("family", FAMILIES)
def test_copies_run_on_the_engine_with_weights_of_their_own(family, copier, tmp_path):
    _, ours = make_pair(family, tie_word_embeddings=True)
    if copier == "deepcopy":
        other = copy.deepcopy(ours)
    elif copier == "pickle":
        other = pickle.loads(pickle.dumps(ours))
    else:
        torch.save(ours, tmp_path / "model.pt")
        other = torch.load(tmp_path / "model.pt", weights_only=False)
    batch = {"input_ids": tokens(2, 7), "labels": tokens(2, 7)}
    assert type(other) is type(ours) and torch.equal(other(**batch).loss, ours(**batch).loss)
    assert_on_engine(other)
    assert (other.lm_head.weight is other.get_input_embeddings().weight) == (family in OTHERS)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    assert not torch.equal(other(**batch).loss, ours(**batch).loss)


def test_a_pickle_opens_in_a_fresh_process(tmp_path):
    _, ours = make_pair("Qwen3MoeForCausalLM")
    ids = tokens(2, 7)
    torch.save((ours, ids, ours(ids, labels=ids).loss.detach()), tmp_path / "model.pt")
    code = f"""
import torch
model, ids, loss = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
assert torch.equal(model(ids, labels=ids).loss, loss) and model.automoe.path == "engine"
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_changed_in_place_are_seen_at_once(family):
    _, ours = make_pair(family)
    other, _ = make_pair(family, seed=9)
    ids = tokens(2, 7)
    before = ours(ids, labels=ids).loss
    ours.load_state_dict(other.state_dict())
    after = ours(ids, labels=ids).loss
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, other(ids, labels=ids).loss, rtol=1e-5, atol=0)


def test_inference_mode_even_for_a_model_made_in_it():
    plain, ours = make_pair("Qwen3MoeForCausalLM")
    ids = tokens(2, 7)
    with torch.inference_mode():
        made_inside = copy.deepcopy(ours)
        for model in (ours, made_inside):
            output = model(ids, labels=ids)
            assert_on_engine(model)
            torch.testing.assert_close(output.logits, plain(ids).logits)


def test_importing_the_package_is_cheap():
    code = "import sys, automoe; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_the_package_tells_its_version_and_where_cmake_looks():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{automoe.__version__}"\n' in project
    assert Path(automoe.cmake_prefix_path) == Path(automoe.__file__).parent
    with pytest.raises(AttributeError, match="AutoModelForCausualLM"):
        automoe.AutoModelForCausualLM  # noqa: B018


def test_a_class_made_from_the_model_keeps_its_own_forward():
    _, ours = make_pair("LlamaForCausalLM")

    class Doubled(type(ours)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.loss = 2 * output.loss
            return output

    mine = Doubled(ours.config)
    mine.load_state_dict(ours.state_dict())
    batch = {"input_ids": tokens(2, 7), "labels": tokens(2, 7)}
    torch.testing.assert_close(mine(**batch).loss, 2 * ours(**batch).loss)
    assert_on_engine(mine)
