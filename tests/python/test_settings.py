"""Settings from YAML and flags: unknown ones are refused by name, words of other tools are mapped."""

import pytest
from automoe.cli import app
from automoe.finetune.config import FinetuneConfig
from typer.testing import CliRunner

BASE = {"model": "m", "data": "d"}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("learning_rat", "learning_rate"),
        ("max_lenght", "max_length"),
        ("dataa", "data"),
        ("warm_up_steps", "warmup_steps"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key, nearest):
    with pytest.raises(ValueError, match=rf"unknown key '{key}'; did you mean '{nearest}'\?"):
        FinetuneConfig.build({**BASE, key: 1})


def test_a_key_like_no_other_lists_all_known_ones():
    with pytest.raises(ValueError, match=r"unknown key 'zzz'; known are adam_beta1, .*weight_decay"):
        FinetuneConfig.build({**BASE, "zzz": 1})


def test_words_of_other_tools_are_mapped():
    config = FinetuneConfig.build(
        {"model_name_or_path": "m", "dataset": "d", "lr": 3e-4, "epochs": 2, "max_seq_length": 9}
    )
    assert (config.learning_rate, config.num_train_epochs, config.max_length) == (3e-4, 2, 9)
    with pytest.raises(ValueError, match="'learning_rate' is given twice, once as 'lr'"):
        FinetuneConfig.build({**BASE, "learning_rate": 1, "lr": 1})


def test_impossible_values_are_named_with_what_came():
    with pytest.raises(ValueError, match=r"learning_rate: .*greater than 0, got -1"):
        FinetuneConfig.build({**BASE, "learning_rate": -1})
    with pytest.raises(ValueError, match=r"lr_scheduler_type: .*'cosine'.*got 'cosin'"):
        FinetuneConfig.build({**BASE, "lr_scheduler_type": "cosin"})
    with pytest.raises(ValueError, match="data: Field required"):
        FinetuneConfig.build({"model": "m"})


def test_flags_win_over_the_file_and_bad_files_are_named(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("model: m\ndata: d\nlr: 0.1\nfreeze: [embed]\nrouter_aux_loss: true\n")
    config = FinetuneConfig.from_yaml(file, {"learning_rate": 0.2, "seed": None, "freeze": []})
    assert config.learning_rate == 0.2 and config.freeze == ["embed"] and config.router_aux_loss is True
    file.write_text("- a list")
    with pytest.raises(ValueError, match=r"run.yaml must hold keys and values, got list"):
        FinetuneConfig.from_yaml(file, {})
    with pytest.raises(ValueError, match="does not exist"):
        FinetuneConfig.from_yaml(tmp_path / "none.yaml", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "--model", "m", "--data", "d", "--lerning-rate", "1"], "--learning-rate"),
        (["finetune", "--model", "m"], "data: Field required"),
        (["finetune", "--model", "/nowhere", "--data", "d"], "does not exist"),
        (["data", "check", "nothing.jsonl", "--model", "/nowhere"], "does not exist"),
        (["upcycle", "/nowhere", "x"], "does not exist"),
        (["info", "/nowhere"], "does not exist"),
    ],
)
def test_mistakes_are_one_paragraph_and_exit_code_2(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ") and "Traceback" not in result.output


def test_every_command_explains_itself():
    for command in (
        ["finetune"],
        ["data", "prepare"],
        ["data", "preview"],
        ["data", "check"],
        ["generate"],
        ["info"],
        ["upcycle"],
        ["doctor"],
    ):
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0 and "Usage" in result.output
