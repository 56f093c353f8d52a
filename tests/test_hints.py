"""What the command line accepts, and what it says about what it does not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from sctom.fit import FitCLI, build
from sctom.hints import _as_json, explain, reasons
from sctom.rollout import LocalSampler

CONFIG = Path(__file__).parents[1] / "configs" / "tiny" / "grpo.yaml"


@pytest.fixture
def command(monkeypatch):
    """Builds what a command line asks for; nothing is loaded."""

    def call(*options: str, config: Path = CONFIG) -> FitCLI:
        monkeypatch.setattr(sys, "argv", ["fit", "--config", str(config), *options])
        return build()

    return call


@pytest.fixture
def refused(command, capsys):
    """What is said about a command line that is refused: the lines between first and last."""

    def call(*options: str) -> list[str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            command(*options)
        assert leaving.value.code == 2
        first, *others = capsys.readouterr().err.splitlines()[:-1]
        return [re.sub(r"^error in the config: ", "", first), *others]

    return call


def edited(folder: Path, **settings) -> Path:
    content = yaml.safe_load(CONFIG.read_text())
    content["model"]["init_args"] |= settings
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


# ---- null ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{} null", "{}=null", "{}=Null"])
@pytest.mark.parametrize("place", ["model.backbone", "model.init_args.backbone.init_args"])
def test_null_is_null_in_a_class_inside_a_class(command, form, place):
    values = {
        "quantization": "nf4",
        "compute_dtype": "bfloat16",
        "lora_alpha": "7.5",
        "attention": "sdpa",
        "adapter": "somewhere",
    }
    given = [f"--{place}.{name}={value}" for name, value in values.items()]
    nulls = [part for name in values for part in form.format(f"--{place}.{name}").split()]
    settings = command(*given, *nulls).config.model.init_args.backbone.init_args
    assert {name: settings[name] for name in values} == dict.fromkeys(values)


@pytest.mark.parametrize("null", ["null", "~"])
def test_every_null_of_yaml_at_every_depth(command, null):
    cli = command(
        "--model.max_grad_norm", null,
        "--model.optimizer.foreach", null,
        "--data.order", "SolveRate", "--data.order.prior", "0.25", "--data.order.prior", null,
        "--data.system", null,
        "--trainer.max_time", null,
    )  # fmt: skip
    model, data = cli.config.model.init_args, cli.config.data.init_args
    assert model.max_grad_norm is model.optimizer.init_args.foreach is None
    assert data.order.init_args.prior is data.system is cli.config.trainer.max_time is None


def test_null_inside_a_value_of_a_class_inside_a_class(command, refused):
    spec = "{class_path: Backbone, init_args: {path: 'sctom:tinyworld/model', attention: null}}"
    assert command("--model.backbone", spec).model.backbone.attention is None
    assert command("--model.backbone.init_args", "{attention: null, adapter: null}").model
    said = refused("--model.optimizer.betas", "[0.9, null]")
    assert said == ["model.optimizer.betas: Expected a <class 'float'>"]


@pytest.mark.parametrize("text", ["1.10", "true", "nullable", "None of it", "[a, b"])
def test_other_texts_arrive_as_they_are_written(command, text):
    assert command("--model.backbone.adapter", text).model.backbone.adapter == text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("--a.b=None", "--a.b=null"),
        ("--a.b=[1, None, 'é=']", '--a.b=[1, null, "é="]'),
        ("--a.b={'None': True}", '--a.b={"None": true}'),
        ("--a.b={1: 2}", "--a.b={1: 2}"),
        ("--a.b={None}", "--a.b={None}"),
        ("--a.b=[None", "--a.b=[None"),
        ("--a.b=None=", "--a.b=None="),
        ("--a.b", "--a.b"),
    ],
)
def test_values_of_python_become_values_of_json(written, read):
    assert _as_json(written) == read


# ---- the sampler, whose type is a protocol -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "max_rows"),
    [
        (["--model.sampler", "LocalSampler"], 256),
        (["--model.sampler", "LocalSampler", "--model.sampler.max_rows", "64"], 64),
        (["--model.sampler.max_rows", "64"], 64),
        (["--model.sampler.max_rows=64", "--model.sampler", "null"], 256),
        (["--model.sampler", "sctom.rollout.LocalSampler", "--model.sampler.max_rows", "64"], 64),
    ],
)
def test_a_sampler_on_the_command_line(command, options, max_rows):
    sampler = command(*options).model.sampler
    assert type(sampler) is LocalSampler and sampler.max_rows == max_rows


@pytest.mark.parametrize(
    "spec",
    [
        "LocalSampler",
        {"class_path": "LocalSampler", "init_args": {"max_rows": 256}},
        {"init_args": {"max_rows": 256}},
        {"max_rows": 256},
    ],
)
def test_a_sampler_in_a_file(command, tmp_path, spec):
    cli = command("--model.sampler.max_rows", "64", config=edited(tmp_path, sampler=spec))
    assert cli.config.model.init_args.sampler.class_path == "sctom.rollout.LocalSampler"
    assert cli.model.sampler.max_rows == 64


OWN = """
from collections.abc import Sequence
from torch import nn
from sctom.batch import Prompt
from sctom.rollout import Finished, Sample, Sampling

class Mine:
    def __init__(self, speed: int = 1) -> None:
        self.speed = speed

    def sample(
        self, model: nn.Module, prompts: Sequence[Prompt], *, group_size: int,
        sampling: Sampling, stop_ids: frozenset[int], address: tuple[int, ...],
        finished: Finished | None = None,
    ) -> list[Sample]:
        return []
"""


def test_a_sampler_that_only_looks_like_one(command, refused, tmp_path, monkeypatch):
    (tmp_path / "own_sampler.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--model.sampler", "own_sampler.Mine", "--model.sampler.speed")
    assert command(*options, "3").model.sampler.speed == 3
    assert refused(*options, "fast") == [
        "model.sampler.speed: Expected a <class 'int'>. Got value: fast"
    ]


SAMPLE = re.search(r"def sample\(.*?:\n(?=        return)", OWN, re.S)[0]
ANNOTATED = (
    "model: nn.Module, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, "
    "stop_ids: frozenset[int], address: tuple[int, ...], finished: Finished | None, "
    "-> list[Sample]"
)


@pytest.mark.parametrize(
    ("method", "faults"),
    [
        (
            "def sample(self, model, prompts, *, group_size, sampling, stop_ids, address, "
            "finished=None):\n",
            [f".sample lacks annotations: {ANNOTATED}"],
        ),
        (
            SAMPLE.replace("        finished: Finished | None = None,\n", ""),
            [".sample lacks the argument finished: Finished | None = None"],
        ),
        (
            SAMPLE.replace("finished: Finished | None = None,", "**others: int,"),
            [],
        ),
        (
            SAMPLE.replace("Sequence[Prompt]", "list[Prompt]").replace(" = None", ""),
            [
                ".sample needs a default for finished, which it may be called without",
                ".sample has other annotations than prompts: Sequence[Prompt]",
            ],
        ),
        (
            SAMPLE.replace("model: nn.Module, prompts", "prompts", 1).replace(
                "*, group", "model: nn.Module, *, group"
            ),
            [".sample must begin with (self, model, prompts)"],
        ),
        (
            SAMPLE.replace("nn.Module", "'Unknown'"),
            [".sample has an annotation that cannot be read: name 'Unknown' is not defined"],
        ),
        ("def draw(self):\n", [" has no method 'sample'"]),
    ],
)
def test_what_a_sampler_lacks_is_told(refused, tmp_path, monkeypatch, method, faults):
    (tmp_path / "faulty.py").write_text(OWN.replace(SAMPLE, method))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    for form in ("faulty.Mine", "{class_path: faulty.Mine}"):
        first, *told, last = refused("--model.sampler", form)
        assert re.sub(" faulty.Mine", "", first) == (
            "model.sampler: Import path does not implement protocol Sampler"
        )
        assert told == [f"  faulty.Mine{fault}" for fault in faults]
        assert last.startswith("  docs/extending.md has a sampler to start from")


def test_a_sampler_that_is_no_class(refused):
    assert refused("--model.sampler", "os.getcwd")[-1] == "  os.getcwd is not a class"


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--data.order", "SolveRate", "--data.order.floor", "-1"],
            ["data.order.floor must be from 1e-6 to 1 but is -1.0"],
        ),
        (
            ["--data.order", "SolveRate", "--data.order.flor", "0.1"],
            [
                "data.order: Option 'flor' is not accepted",
                "  'flor' is not known; did you mean 'floor'?",
            ],
        ),
        (
            ["--data.order", "Solverate"],
            [
                "data.order: Expected a dot import path string: Solverate",
                "  'Solverate' is not known; did you mean 'SolveRate'?",
            ],
        ),
        (
            ["--data.order.class_path", "Nope"],
            ["data.order: Expected a dot import path string: Nope", "  'Nope' is not known"],
        ),
        (
            ["--model.optimizer.lr", "inf"],
            ["model.optimizer.lr: Expected a <class 'float'>", "  a finite number is needed"],
        ),
        (
            ["--model.optimizer.lr", "fast"],
            ["model.optimizer.lr: Expected a <class 'float'>"],
        ),
        (
            ["--model.group_size", "four"],
            ["model.group_size: Expected a <class 'int'>. Got value: four"],
        ),
        (
            ["--model.backbone.quantization", "nf5"],
            ["model.backbone.quantization: Expected a typing.Literal['nf4']"],
        ),
        (
            ["--trainer.callbacks.init_args.every", "x"],
            ["trainer.callbacks.every: Expected a <class 'int'>. Got value: x"],
        ),
        (
            ["--trainer.callbacks.init_args.evry", "3"],
            [
                "trainer.callbacks: Option 'evry' is not accepted",
                "  'evry' is not known; did you mean 'every'?",
            ],
        ),
        (
            ["--model.sampler.max_row", "3"],
            [
                "model.sampler: Option 'max_row' is not accepted",
                "  'max_row' is not known; did you mean 'max_rows'?",
            ],
        ),
        (
            ["--model.sampler", "LocalSample"],
            [
                "model.sampler: Expected a dot import path string: LocalSample",
                "  'LocalSample' is not known; did you mean 'LocalSampler'?",
            ],
        ),
        (
            ["--trainer.logger", "WandbLogge"],  # not an option that happens to look like it
            [
                "trainer.logger: Expected a dot import path string: WandbLogge",
                "  'WandbLogge' is not known",
            ],
        ),
        (
            ["--trainer.devices", "2", "--config", "no/such.yaml"],
            [f"config: File does not exist: '{Path.cwd() / 'no/such.yaml'}'"],
        ),
        (
            ["--model.objective", "CISPO", "--model.objective.beta", "0.1"],
            [
                "model.objective: Option 'beta' is not accepted",
                "  'beta' belongs to another class or place than this",
            ],
        ),
    ],
)
def test_the_reason_with_its_place_and_nothing_else(refused, options, said):
    assert refused(*options) == said


def test_the_classes_to_choose_from_are_named(refused):
    reason, hint = refused("--data.order.floor", "0.1")
    assert reason.startswith(
        "data.order: Expected an instantiatable class, but sctom.data.PromptOr"
    )
    assert hint.startswith("  name its class first: --data.order followed by one of ")
    assert {"Shuffled", "SolveRate"} <= set(hint.partition("one of ")[2].split(", "))


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        (["--trainer.max_st", "4"], "trainer.max_steps"),
        (["--resum", "auto"], "resume"),
        (["--run", "here"], "run_dir"),
        (["--seed", "3"], "seed_everything"),
        (["--model.group", "4"], "group_size"),
    ],
)
def test_the_beginning_of_an_option_is_not_enough(refused, options, whole):
    assert refused(*options)[-1].endswith(f"is not known; did you mean '{whole}'?")


def test_reasons_of_the_type_that_was_meant_come_first_and_alone():
    told = (
        "Does not validate against any of the Union subtypes\n"
        "Subtypes: [A, B]\n"
        "Errors:\n"
        "  - Problem with given class_path 'a.A':\n"
        '      Parser key "x" element 2:\n'
        "        - Expected a path but y either not accessible or invalid\n"
        "\n"
        "        Expected this\n"
        "        Expected that\n"
        "  - Expected a number\n"
        "Given value: y"
    )
    assert [(r.text, r.place, r.class_path) for r in reasons(told)] == [
        ("Expected this", "x", "a.A"),
        ("Expected that", "x", "a.A"),
    ]


def test_a_reason_of_several_lines_names_its_place_once():
    told = 'Parser key "x":\n  Expected one of:\n  - this\n  - that'
    assert explain(told, set()) == "x: Expected one of:\n  this\n  that"


@pytest.mark.parametrize("message", ["Expected a <class 'NoneType'>", "some other fault"])
def test_nothing_is_said_less_than_nothing(message):
    assert explain(message, set()) == message
