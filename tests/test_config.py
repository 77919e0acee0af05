"""key=value words in, frozen configs out; every mistake one line with what exists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoplace.config import (
    BenchConfig,
    CheckConfig,
    InspectConfig,
    PlanConfig,
    ReportConfig,
    SettingsConfig,
    SynthConfig,
    TuneConfig,
    load_config,
)
from autoplace.config.groups import choices, default_choices
from autoplace.config.help import command_help
from autoplace.config.schema import COMMANDS
from autoplace.errors import AutoplaceError
from autoplace.hardware.nvml import visible_gpus
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.settings import RunSettings
from autoplace.units import GIB
from tests.hardware.profiles import profile

NEEDED = {"synth": ["out=o.gguf"], "check": ["rules=r.yaml"], "bench": ["rules=r.yaml"]}


def tune(*overrides: str) -> TuneConfig:
    config = load_config("tune", overrides)
    assert isinstance(config, TuneConfig)
    return config


def plan(*overrides: str) -> PlanConfig:
    config = load_config("plan", overrides)
    assert isinstance(config, PlanConfig)
    return config


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("inspect", InspectConfig),
        ("synth", SynthConfig),
        ("plan", PlanConfig),
        ("check", CheckConfig),
        ("bench", BenchConfig),
        ("tune", TuneConfig),
        ("report", ReportConfig),
    ],
)
def test_a_command_needs_no_more_than_its_file(command: str, kind: type) -> None:
    assert isinstance(load_config(command, NEEDED.get(command, [])), kind)


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("tune", {"workload", "engine", "measure", "sampler", "runner", "storage"}),
        ("plan", {"settings"}),
    ],
)
def test_every_choice_of_every_group_fits_the_schema(command: str, groups: set[str]) -> None:
    assert groups <= set(default_choices(command))
    for group in groups:
        for choice in choices(group):
            load_config(command, [*NEEDED.get(command, []), f"{group}={choice}"])


@pytest.mark.parametrize("name", choices("hardware"))
def test_a_hardware_profile_by_name_is_the_machine_of_its_file(name: str) -> None:
    machine = plan(f"hardware={name}").machine
    assert machine == machine_from_profile(profile(name))
    assert machine.name == {"custom": "desktop"}.get(name, name)


def test_a_tune_with_nothing_given_is_measured_here_on_the_default_model() -> None:
    config = tune()
    assert config.model.name == "mini"
    assert config.model.path is None
    assert not config.measure.predicted
    assert config.machine.name == "auto"
    assert config.storage.path == Path("studies/studies.db")
    assert config.n_trials >= 20


def test_what_is_given_arrives_typed() -> None:
    config = tune(
        "n_trials=7",
        "timeout_s=60",
        "max_kl=0.05",
        "prune=false",
        "sampler=nsga2",
        "sampler.seed=3",
    )
    assert (config.n_trials, config.timeout_s, config.max_kl) == (7, 60.0, 0.05)
    assert config.prune is False
    assert (config.sampler.name, config.sampler.seed) == ("nsga2", 3)


@pytest.mark.parametrize(
    "text",
    [
        "/a b/c=d.gguf",
        "x,y.gguf",
        "x~ (1).gguf",
        "ä[0]{1}.gguf",
        "${oc.env:HOME}.gguf",
        "a'b\".gguf",
        "c:\\d.gguf",
        "null.gguf",
    ],
)
def test_a_path_is_taken_as_it_stands(text: str) -> None:
    config = load_config("inspect", [f"model.path={text}"])
    assert isinstance(config, InspectConfig)
    assert config.model.path == Path(text)


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_path_may_be_quoted_as_hydra_asks_for_it(quote: str) -> None:
    config = load_config("check", [f"rules={quote}a, b.yaml{quote}"])
    assert isinstance(config, CheckConfig)
    assert config.rules == Path("a, b.yaml")


def test_a_home_folder_in_a_path_is_found() -> None:
    config = load_config("check", ["rules=~/r.yaml", "model.path=~/m.gguf"])
    assert isinstance(config, CheckConfig)
    assert config.rules == Path.home() / "r.yaml"
    assert config.model.path == Path.home() / "m.gguf"


def test_a_file_gives_the_model_its_name() -> None:
    config = load_config("inspect", ["model.path=/m/DeepSeek-V2.Q4_K_M.gguf"])
    assert isinstance(config, InspectConfig)
    assert config.model.name == "DeepSeek-V2.Q4_K_M"
    assert not config.model.preset


def test_a_machine_is_composed_of_parts() -> None:
    machine = plan(
        "hardware=custom",
        "hardware.gpus=[rtx-5090,rtx-3090]",
        "hardware.host=ryzen-9950x",
        "hardware.host_memory_gib=256",
    ).machine
    assert machine.devices == plan("hardware=5090-3090").machine.devices


def test_a_changed_profile_has_a_name_of_its_own() -> None:
    machine = plan("hardware=2x4090", "hardware.gpu_memory_gib=12").machine
    assert machine.name == "2x4090-gpu_memory_gib-12"
    assert {gpu.memory_bytes for gpu in machine.gpus} == {12 * GIB}


def test_a_changed_workload_has_a_name_of_its_own() -> None:
    assert plan("workload=chat").workload.name == "chat"
    workload = plan("workload.prompt_tokens=100", "workload.output_tokens=20").workload
    assert (workload.name, workload.context_tokens) == ("100-20-120", 120)


def test_run_settings_are_what_is_given_then_the_headers_then_the_defaults() -> None:
    machine = plan("hardware=2x4090").machine
    header = RunSettings(num_threads=3, prefill_chunk=64, kv_type="q8_0")
    assert SettingsConfig().resolve(machine) == RunSettings(machine.num_cores, 512, "f16")
    assert SettingsConfig().resolve(machine, header) == header
    assert SettingsConfig(num_threads=5).resolve(machine, header) == RunSettings(5, 64, "q8_0")


def test_a_study_of_absent_hardware_is_a_predicted_one() -> None:
    config = tune("hardware=8xl40", "measure=predicted")
    assert config.measure.predicted
    assert config.machine.name == "8xl40"


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has GPUs")
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_absent_hardware_is_refused_where_it_would_be_measured(command: str) -> None:
    with pytest.raises(AutoplaceError) as refused:
        load_config(command, [*NEEDED.get(command, []), "hardware=2xa6000"])
    assert "this machine has no GPU; use `plan` for it, or measure=predicted" in str(refused.value)


MISTAKES = [
    ("tune", "n_trails=3", "tune has no key 'n_trails'; did you mean 'n_trials'"),
    ("tune", "hardwear=auto", "tune has no key 'hardwear'; did you mean 'hardware'"),
    ("tune", "hardware=2xa600", "no hardware '2xa600'; did you mean '2xa6000'"),
    ("tune", "hardware=_base", "no hardware '_base'; there are 1x3090, "),
    ("tune", "sampler=bayes", "no sampler 'bayes'; there are gp, nsga2, random, tpe"),
    ("tune", "sampler.sed=1", "tune has no key 'sampler.sed'; did you mean 'sampler.seed'"),
    ("tune", "prompt_tokens=9", "no key 'prompt_tokens'; did you mean 'workload.prompt_tokens'"),
    ("tune", "zzzzzz=9", "tune has no key 'zzzzzz'; `tune --help` lists the keys"),
    ("tune", "+n_trials=3", "tune has no key '+n_trials'; did you mean 'n_trials'"),
    ("tune", "~rules", "expected key=value, got '~rules'"),
    ("tune", "--n-trials=3", "tune has no key '--n-trials'; did you mean 'n_trials'"),
    ("tune", "n_trials", "expected key=value, got 'n_trials'"),
    ("tune", "=3", "expected key=value, got '=3'"),
    ("tune", "n_trials=many", "n_trials: Value 'many' of type 'str' could not be converted"),
    ("tune", "n_trials=[1", "cannot read n_trials=[1: no viable alternative"),
    ("tune", "n_trials=0", "n_trials is at least 1, got 0"),
    ("tune", "n_trials=null", "n_trials: Incompatible value 'None'"),
    ("tune", "sampler.seed=x", "sampler.seed: Value 'x'"),
    ("tune", "timeout_s=-1", "timeout_s is a positive number, got -1.0"),
    ("tune", "max_kl=nan", "max_kl is a positive number, got nan"),
    ("tune", "sampler.seed=-1", "sampler.seed is at least 0, got -1"),
    ("tune", "n_trials=1,2", "Ambiguous value for argument 'n_trials=1,2'"),
    ("plan", "workload.context_tokens=0", "workload.context_tokens is 0, but prompt and output"),
    ("plan", "hardware.num_cores=0", "hardware.num_cores is at least 1, got 0"),
    ("plan", "hardware.gpus=rtx-4090", "hardware.gpus: expected a list, as in [a,b]"),
    ("tune", "study_dir=", "tune needs study_dir="),
    ("tune", "n_trials=${x}", "Interpolation key 'x' not found"),
    ("plan", "workload.name=../x", "workload.name names a folder, got '../x'"),
    ("plan", "hardware.name=a/b", "hardware.name names a folder, got 'a/b'"),
    ("tune", "kv_type=f8", "kv_type is one of f32, f16, bf16, q8_0, got 'f8'"),
    ("tune", "output=xml", "output is one of text, json, got 'xml'"),
    ("tune", "engine.dtype=int8", "engine.dtype is one of bfloat16, float32, got 'int8'"),
    ("tune", "engine.cuda_graphs=1", "engine.cuda_graphs is one of auto, on, off, got '1'"),
    ("tune", "measure.max_repeats=1", "measure.max_repeats is at least 3, got 1"),
    ("plan", "workload.prompt_tokens=0", "workload.prompt_tokens is at least 1, got 0"),
    ("plan", "workload.context_tokens=8", "workload.context_tokens is 8, but prompt and output"),
    ("plan", "model=/m/x.gguf", "no model '/m/x.gguf'; a file is given as model.path=/m/x.gguf"),
    ("plan", "model=x.gguf", "no model 'x.gguf'; a file is given as model.path=x.gguf"),
    ("plan", "n_trials=3", "plan has no key 'n_trials'"),
    ("plan", "rulez=x y.yaml", "plan has no key 'rulez'; did you mean 'rules'"),
    ("inspect", "rules=x.yaml", "inspect has no key 'rules'"),
    ("check", "output=text", "check needs rules=FILE"),
    ("synth", "sparse=true", "synth needs out=FILE"),
    ("synth", "model.path=x.gguf", "synth writes a preset"),
]


@pytest.mark.parametrize(("command", "word", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_says_what_exists(command: str, word: str, message: str) -> None:
    with pytest.raises(AutoplaceError) as refused:
        load_config(command, [word])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("auto", "auto"), ("on", "on"), ("off", "off"), ("true", "on"), ("false", "off")],
)
def test_graphs_may_be_switched_by_the_words_that_yaml_takes_for_booleans(
    word: str, meant: str
) -> None:
    config = load_config("tune", [f"engine.cuda_graphs={word}"])
    assert isinstance(config, TuneConfig)
    assert config.engine.cuda_graphs == meant


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_lists_every_key_with_its_default_and_every_choice(command: str) -> None:
    text = command_help(command)
    for group, default in default_choices(command).items():
        assert f"{group}={default}" in text
        listed = text.replace("\n", " ")
        assert all(choice in listed for choice in choices(group))
    if command == "tune":
        assert "n_trials=20" in text
        assert "hardware.gpu_memory_gib=null" in text
        assert "python -m autoplace tune hardware=emulated-128-64mib" in text


def test_the_configuration_is_found_from_any_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autoplace", "tune", "--help"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "n_trials=" in done.stdout
    assert not done.stderr
    assert not list(tmp_path.iterdir())
