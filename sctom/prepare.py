"""Public files to sctom's JSONL: `python -m sctom.prepare NAME --source FILE --out FOLDER`.

Every set is written as train.jsonl, valid.jsonl and test.jsonl in the messages format (HumanEval,
and TriviaQA without --train, as test.jsonl only, Google's example lines as train.jsonl and
valid.jsonl) or as pairs of answers (hh, graded, conflicting), beside a manifest.json with the
hashes of what was read and written. The same source, variant and seed give the same bytes. Two sets
come from elsewhere: refusals from sctom itself, and gatt from the answers of a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sctom.readers import DataError
from sctom.tasks import tinyworld, tinyworld_confidence
from sctom.tasks.code import SHOWN_TESTS, prepare_humaneval, prepare_mbpp
from sctom.tasks.exploretom import prepare_exploretom
from sctom.tasks.gatt import INSTRUCTIONS, SHORT_SHARE, prepare_gatt
from sctom.tasks.google import prepare_google
from sctom.tasks.graded import OVERLAP, prepare_graded
from sctom.tasks.gsm8k import prepare_gsm8k
from sctom.tasks.hh import TEST_SHARE, VALID_SHARE, prepare_hh
from sctom.tasks.refusal import prepare_refusals
from sctom.tasks.selfaware_source import prepare_selfaware
from sctom.tasks.triviaqa import prepare_triviaqa
from sctom.writers import Prepared, write

_IN_TITLE = ("set", "variant", "seed")


def _seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"expected 0 to 2**32 - 1, found {text}")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, found {text}")
    return number


def build_parser() -> argparse.ArgumentParser:
    """The command line: one subcommand for each set, all with --out, --seed and --force."""
    parser = argparse.ArgumentParser(
        prog="python -m sctom.prepare",
        description="Turn the public file of a data set into train, valid and test JSONL.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", required=True, type=Path, help="folder to write to")
    common.add_argument("--seed", type=_seed, default=0, help="seed of every draw (default 0)")
    common.add_argument("--force", action="store_true", help="replace what --out holds")
    sets = parser.add_subparsers(metavar="NAME", required=True)
    selfaware = sets.add_parser("selfaware", parents=[common], help="answerable or not: SelfAware")
    selfaware.add_argument("--source", required=True, type=Path, help="SelfAware.json")
    selfaware.add_argument("--variant", required=True, choices=("original", "v2", "v3"))
    selfaware.add_argument(
        "--allow-other-counts", action="store_true", help="accept a source of another size"
    )
    selfaware.set_defaults(prepare=_selfaware, finish=lambda arguments: None)
    world = sets.add_parser(
        "tinyworld", parents=[common], help="the invented world, and the untrained model of it"
    )
    world.set_defaults(prepare=_tinyworld, finish=_tinyworld_model)
    confidence = sets.add_parser(
        "tinyworld-confidence", parents=[common], help="its people, asked how sure the model is"
    )
    confidence.set_defaults(prepare=_tinyworld_confidence, finish=lambda arguments: None)
    gsm8k = sets.add_parser("gsm8k", parents=[common], help="grade-school mathematics: GSM8K")
    gsm8k.add_argument("--source", required=True, type=Path, help="folder of its two files")
    gsm8k.set_defaults(prepare=_gsm8k, finish=lambda arguments: None)
    mbpp = sets.add_parser("mbpp", parents=[common], help="Python programs with tests: MBPP")
    mbpp.add_argument("--source", required=True, type=Path, help="mbpp.jsonl")
    mbpp.add_argument(
        "--shown-tests",
        type=int,
        default=SHOWN_TESTS,
        choices=range(4),
        help=f"tests that the prompt shows (default {SHOWN_TESTS}; the paper's prompts show 3)",
    )
    mbpp.set_defaults(prepare=_mbpp, finish=lambda arguments: None)
    humaneval = sets.add_parser("humaneval", parents=[common], help="the same, to test: HumanEval")
    humaneval.add_argument("--source", required=True, type=Path, help="HumanEval.jsonl.gz")
    humaneval.set_defaults(prepare=_humaneval, finish=lambda arguments: None)
    google = sets.add_parser(
        "google", parents=[common], help="example lines of Google's reinforcement tuning"
    )
    google.add_argument("--source", required=True, type=Path, help="training examples, JSONL")
    google.add_argument("--valid", type=Path, help="validation examples, JSONL")
    google.set_defaults(prepare=_google, finish=lambda arguments: None)
    refusals = sets.add_parser(
        "refusals", parents=[common], help="prompts that are harmless, plain or with a trigger word"
    )
    refusals.set_defaults(
        prepare=lambda arguments: prepare_refusals(), finish=lambda arguments: None
    )
    _add_questions(sets, common)
    _add_pairs(sets, common)
    _add_gatt(sets, common)
    return parser


def _add_questions(sets: Any, common: argparse.ArgumentParser) -> None:
    """The subcommands of questions that are there for cross-evaluation."""
    exploretom = sets.add_parser(
        "exploretom", parents=[common], help="who believes what, in stories: ExploreToM"
    )
    exploretom.add_argument(
        "--source", required=True, type=Path, help="ExploreToM-data-sample.csv, or JSONL"
    )
    exploretom.add_argument(
        "--story",
        default="infilled",
        choices=("infilled", "structure"),
        help="written out, or its bare sentences (default infilled)",
    )
    exploretom.set_defaults(prepare=_exploretom, finish=lambda arguments: None)
    triviaqa = sets.add_parser("triviaqa", parents=[common], help="knowledge by heart: TriviaQA")
    triviaqa.add_argument(
        "--source", required=True, type=Path, help="validation set, JSON or JSONL: test.jsonl"
    )
    triviaqa.add_argument("--train", type=Path, help="training set: train.jsonl and valid.jsonl")
    triviaqa.set_defaults(prepare=_triviaqa, finish=lambda arguments: None)


def _add_pairs(sets: Any, common: argparse.ArgumentParser) -> None:
    """The subcommands that write pairs of answers."""
    hh = sets.add_parser("hh", parents=[common], help="more helpful or harmless: Anthropic HH")
    hh.add_argument(
        "--source", required=True, type=Path, nargs="+", help="JSONL files, packed or not"
    )
    for kind, default in (("valid", VALID_SHARE), ("test", TEST_SHARE)):
        said = f"share of the pairs for {kind}.jsonl (default {default})"
        hh.add_argument(f"--{kind}-share", type=_share, default=default, help=said)
    hh.set_defaults(prepare=_hh, finish=lambda arguments: None)
    graded = sets.add_parser(
        "graded", parents=[common], help="answers about the invented world, graded by their utility"
    )
    graded.set_defaults(prepare=_graded, finish=lambda arguments: None)
    conflicting = sets.add_parser(
        "conflicting", parents=[common], help="the same, half of them by an opposed objective"
    )
    conflicting.add_argument(
        "--overlap",
        type=_share,
        default=OVERLAP,
        help=f"share of the safety pairs with a harmless wording (default {OVERLAP})",
    )
    conflicting.set_defaults(prepare=_conflicting, finish=lambda arguments: None)
    for parser in (graded, conflicting):
        parser.add_argument("--world", type=_seed, default=0, help="seed of the world (default 0)")
        parser.add_argument(
            "--stated", action="store_true", help="state the facts in the prompt, of new people"
        )


def _add_gatt(sets: Any, common: argparse.ArgumentParser) -> None:
    """The subcommand that lets a model answer under an instruction."""
    gatt = sets.add_parser("gatt", parents=[common], help="dialogues for Ghost Attention")
    gatt.add_argument("--dialogues", required=True, help="JSONL whose turns of the user are asked")
    gatt.add_argument(
        "--instructions", default=INSTRUCTIONS, help=f"JSONL to draw from (default {INSTRUCTIONS})"
    )
    gatt.add_argument("--model", required=True, help="folder of the model, such as RUN/model")
    gatt.add_argument("--adapter", help="folder of an adapter to it")
    for name, kind, default, said in (
        ("max-new-tokens", int, 256, "longest answer (default 256)"),
        ("temperature", float, 1.0, "of the answers (default 1)"),
        ("top-p", float, 1.0, "of the answers (default 1)"),
        ("most-kinds", int, None, "most kinds of instruction joined (default: all)"),
    ):
        gatt.add_argument(f"--{name}", type=kind, default=default, help=said)
    gatt.add_argument(
        "--short-share",
        type=_share,
        default=SHORT_SHARE,
        help=f"share trained with short instructions (default {SHORT_SHARE})",
    )
    gatt.set_defaults(prepare=_gatt, finish=lambda arguments: None)


def _selfaware(arguments: argparse.Namespace) -> Prepared:
    return prepare_selfaware(
        arguments.source,
        variant=arguments.variant,
        seed=arguments.seed,
        allow_other_counts=arguments.allow_other_counts,
    )


def _tinyworld(arguments: argparse.Namespace) -> Prepared:
    return tinyworld.prepared(tinyworld.make_world(arguments.seed))


def _tinyworld_confidence(arguments: argparse.Namespace) -> Prepared:
    return tinyworld_confidence.prepared(tinyworld.make_world(arguments.seed))


def _gsm8k(arguments: argparse.Namespace) -> Prepared:
    return prepare_gsm8k(arguments.source, seed=arguments.seed)


def _mbpp(arguments: argparse.Namespace) -> Prepared:
    return prepare_mbpp(arguments.source, seed=arguments.seed, shown_tests=arguments.shown_tests)


def _humaneval(arguments: argparse.Namespace) -> Prepared:
    return prepare_humaneval(arguments.source, seed=arguments.seed)


def _exploretom(arguments: argparse.Namespace) -> Prepared:
    return prepare_exploretom(arguments.source, seed=arguments.seed, story=arguments.story)


def _triviaqa(arguments: argparse.Namespace) -> Prepared:
    return prepare_triviaqa(arguments.source, train=arguments.train, seed=arguments.seed)


def _google(arguments: argparse.Namespace) -> Prepared:
    return prepare_google(arguments.source, valid=arguments.valid, seed=arguments.seed)


def _hh(arguments: argparse.Namespace) -> Prepared:
    return prepare_hh(
        arguments.source,
        seed=arguments.seed,
        valid_share=arguments.valid_share,
        test_share=arguments.test_share,
    )


def _graded(arguments: argparse.Namespace) -> Prepared:
    world = tinyworld.make_world(arguments.world)
    return prepare_graded(world, seed=arguments.seed, stated=arguments.stated)


def _conflicting(arguments: argparse.Namespace) -> Prepared:
    return prepare_graded(
        tinyworld.make_world(arguments.world),
        seed=arguments.seed,
        objectives=("helpful", "safe"),
        overlap=arguments.overlap,
        stated=arguments.stated,
    )


def _gatt(arguments: argparse.Namespace) -> Prepared:
    from sctom.fit import quiet
    from sctom.modules.answers import turn_answers
    from sctom.modules.backbone import Backbone
    from sctom.rollout.base import Sampling

    quiet()
    try:
        sampling = Sampling(
            arguments.max_new_tokens, temperature=arguments.temperature, top_p=arguments.top_p
        )
        backbone = Backbone(arguments.model, adapter=arguments.adapter)
        return prepare_gatt(
            arguments.dialogues,
            lambda: turn_answers(backbone, sampling, arguments.seed),
            instructions=arguments.instructions,
            seed=arguments.seed,
            most_kinds=arguments.most_kinds,
            short_share=arguments.short_share,
        )
    except (ValueError, RuntimeError) as error:  # of settings, weights or the chat template
        raise DataError(str(error)) from error


def _tinyworld_model(arguments: argparse.Namespace) -> None:
    from sctom.modules.tinyworld import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    make_model(tokenizer, arguments.seed).save_pretrained(arguments.out / "model")
    tokenizer.save_pretrained(arguments.out / "model")


def report(prepared: Prepared, folder: Path, console: Console) -> None:
    """Print the counts of every file, then the notes."""
    about = [f"{key} {value}" for key, value in prepared.manifest.items() if key in _IN_TITLE]
    table = Table("file", title=f"{', '.join(about)}: {folder}")
    headings = list(dict.fromkeys(name for counts in prepared.counts.values() for name in counts))
    for heading in ("rows", *headings):
        table.add_column(heading.replace("_", " "), justify="right")
    for name, counts in prepared.counts.items():
        numbers = [len(prepared.files[name]), *(counts.get(heading, 0) for heading in headings)]
        table.add_row(name, *(f"{number:,}" for number in numbers))
    console.print(table)
    for note in prepared.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        prepared = arguments.prepare(arguments)
        write(prepared, arguments.out, force=arguments.force)
        arguments.finish(arguments)
    except (DataError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    report(prepared, arguments.out, Console())


if __name__ == "__main__":
    main()
