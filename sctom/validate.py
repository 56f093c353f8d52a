"""Try the rewards of a config on its data before paying for a run; nothing is trained.

python -m sctom.validate --config configs/quickstart.yaml [--sample] [--golden golden.jsonl]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from rich import get_console

from sctom.batch import Prompt
from sctom.fit import EXPECTED_ERRORS, FitCLI, build, check_config, quiet
from sctom.modules import PolicyModule
from sctom.modules.advice import columns_of, leak_advice, pair_advice, precision_advice
from sctom.readers import DataError, check_is_file
from sctom.rewards import Reward, RewardError, check_rewards
from sctom.rewards.preflight.calls import same_again, score
from sctom.rewards.preflight.cases import (
    Case,
    DataRow,
    Golden,
    gold_columns,
    gold_text,
    probes,
    read_golden,
    read_responses,
    response_case,
)
from sctom.rewards.preflight.findings import CODES, Finding, judge, judge_cached, judge_golden
from sctom.rewards.preflight.report import Report
from sctom.seeds import permutation

PREFLIGHT = 5
"""Second part of the address of the draws made here, after that of `sctom.modules.selfcheck`."""


def main() -> None:
    """The command line. Exit status 0: a run can start; 1: it would be in vain; 2: bad usage."""
    arguments, rest = _parser().parse_known_args()
    sys.argv[1:] = rest  # what `build` reads
    quiet()
    try:
        if arguments.google_request:
            sys.exit(answer_request(arguments.google_request))
        report = validate(build(), arguments)
        report.print(get_console())
        if arguments.json:
            report.write(arguments.json)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(report.status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sctom.validate",
        description=(__doc__ or "").splitlines()[0],
        epilog="Further options are those of sctom.fit, first of all --config.",
        allow_abbrev=False,
    )
    parser.add_argument("--rows", type=_at_least_one, default=32, help="prompts to try (32)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--responses", metavar="FILE", help="JSONL of completions of data rows")
    which.add_argument("--sample", action="store_true", help="sample from the config's model")
    parser.add_argument("--golden", metavar="FILE", help="JSONL of completions of known reward")
    parser.add_argument("--seconds", type=_seconds, default=60.0, help="deadline of a call (60)")
    parser.add_argument("--json", metavar="FILE", help="write the outcome there")
    parser.add_argument("--strict", action="store_true", help="warnings fail too")
    parser.add_argument(
        "--ignore", nargs="+", default=[], choices=sorted(CODES), help="findings to leave out"
    )
    parser.add_argument(
        "--google-request", metavar="FILE", help="answer a validateReinforcementTuningReward"
    )
    return parser


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {text}")
    return number


def _seconds(text: str) -> float:
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, found {text}")
    return number


def answer_request(path: str) -> int:
    """Print the response to a request of Google's, and say whether it is free of errors."""
    from sctom.rewards.google.validate_request import answer

    try:
        request = json.loads(check_is_file(path).read_text())
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON ({error})") from error
    response = answer(request)
    print(json.dumps(response, indent=2, ensure_ascii=False))
    details = response.get("rewardInfoDetails", {}).values()
    return int("errorStatus" in response or any("errorStatus" in info for info in details))


def validate(cli: FitCLI, arguments: argparse.Namespace) -> Report:
    """Try every reward and judge what it gives.

    Raises:
        ValueError: a config, data, or files of the command line that cannot mean what they say.
        OSError: a file is missing.
    """
    module = _prepared(cli)
    prompts: list[Prompt] = cli.datamodule.train_prompts
    rows = [DataRow(prompt.index, prompt.messages, prompt.columns) for prompt in prompts]
    golden = _golden(module, arguments.golden, rows)
    groups, source = _groups(cli, module, rows, arguments)
    columns = columns_of(prompts)
    limits: dict[str, Any] = {"seconds": arguments.seconds, "threaded": module.overlap_rewards}

    findings, broken = _outside(module.rewards)
    findings += _advice(module, columns)
    alive = [reward for reward in module.rewards if reward not in broken]
    scored = [score(reward, groups, **limits) for reward in alive]
    if scored:
        opened = _opened(module.tokenizer.decode(prompts[0].ids))
        real = bool(arguments.responses or arguments.sample)
        findings += judge(
            scored,
            [len(group) for group in groups],
            columns,
            real=real,
            opened=opened,
            summed_raw=module.aggregation == "sum_then_normalize",
            max_failures=module.reward_health.max_failures,
        )
    for one in scored:
        if one.reward.cache and not one.troubles:
            told = judge_cached(one.reward.name, *same_again(one, groups, **limits))
            findings += told
    if golden and scored and not broken:
        tried = [score(reward, [[sample.case] for sample in golden], **limits) for reward in alive]
        findings += judge_golden(tried, golden)
        source += f", and {len(golden)} golden samples"
    kept = [finding for finding in findings if finding.code not in arguments.ignore]
    kept.sort(key=lambda finding: finding.level != "failure")
    notes = [
        line if line.startswith(f"{reward.name}: ") else f"{reward.name}: {line}"
        for reward in alive
        for line in reward.describe()
    ]
    return Report(source, scored, [len(g) for g in groups], kept, arguments.strict, notes)


def _prepared(cli: FitCLI) -> PolicyModule:
    """The module with its tokenizer and data; no weights are loaded."""
    module = cli.model
    if not isinstance(module, PolicyModule):
        raise ValueError(f"{type(module).__name__} has no rewards that could be tried")
    check_config(cli)
    return module


def _golden(module: PolicyModule, path: str | None, rows: Sequence[DataRow]) -> list[Golden]:
    if path is None:
        return []
    names = [reward.name for reward in module.rewards]
    golden = read_golden(path, rows, names, _encoder(module))
    for sample in golden:
        try:
            check_rewards(module.rewards, sample.case.columns)
        except RewardError as error:
            raise DataError(f"{sample.case.place}: {error}") from error
    return golden


def _encoder(module: PolicyModule) -> Any:
    def encode(text: str) -> list[int]:
        return list(module.tokenizer.encode(text, add_special_tokens=False))

    return encode


def _groups(
    cli: FitCLI, module: PolicyModule, rows: Sequence[DataRow], arguments: argparse.Namespace
) -> tuple[list[list[Case]], str]:
    """What the rewards are called with, prompt by prompt, and what that is in words."""
    encode = _encoder(module)
    if arguments.responses:
        groups = read_responses(arguments.responses, rows, encode)
        count = sum(map(len, groups))
        return groups, f"{count} completions of {len(groups)} prompts from {arguments.responses}"
    chosen = sorted(permutation(len(rows), cli.datamodule.seed, 0)[: arguments.rows])
    if arguments.sample:
        groups = _sampled(cli, module, [cli.datamodule.train_prompts[i] for i in chosen])
        return groups, f"{len(chosen)} prompts with {module.group_size} sampled completions each"
    names = gold_columns(module.rewards, rows[0].columns)
    limit = module.sampling.max_new_tokens
    made = [probes(rows[i], gold_text(rows[i].columns, names), encode, limit) for i in chosen]
    return made, f"{sum(map(len, made))} built-in completions of {len(made)} prompts"


def _sampled(cli: FitCLI, module: PolicyModule, prompts: Sequence[Prompt]) -> list[list[Case]]:
    """Completions of the model as it is loaded, with the sampler and settings of the run."""
    module.trainer = cli.trainer  # says which device to load to
    module.configure_model()
    size = module.group_size
    drawn = module.complete(prompts, size, module.sampling, PREFLIGHT)
    cases = []
    for row in drawn:
        prompt = row.prompt
        place = DataRow(prompt.index, prompt.messages, prompt.columns)
        cases.append(response_case(place, row.text, row.ids, "sampled", row.truncated))
    return [cases[i : i + size] for i in range(0, len(cases), size)]


def _opened(prompt: str) -> str:
    r"""A tag at the end of a rendered prompt, which completions begin behind.

    >>> _opened("<|assistant|>\n<think>\n"), _opened("<|assistant|>")
    ('<think>', '')
    """
    tail = prompt.rstrip()
    return next((tag for tag in ("<think>", "<reasoning>") if tail.endswith(tag)), "")


def _outside(rewards: Sequence[Reward]) -> tuple[list[Finding], list[Reward]]:
    """What rewards depend on and lack, and these rewards, which are not called then."""
    findings, broken = [], []
    for reward in rewards:
        try:
            reward.check()
        except (RewardError, OSError) as error:
            told = f"{error}; the run would not start"
            findings.append(Finding("failure", "check", told, reward.name))
            broken.append(reward)
    return findings, broken


def _advice(module: PolicyModule, columns: dict[str, list[Any]]) -> list[Finding]:
    """What a run would tell as advice."""
    asked = [reward for reward in module.rewards if reward.weight > 0]
    findings = [
        Finding("warning", "advice", line.removeprefix(f"{reward.name}: "), reward.name)
        for reward in asked
        for line in reward.advice(columns)
    ]
    leaks = [Finding("warning", "label-leak", line) for line in leak_advice(asked, columns)]
    settings = [*pair_advice(module), *precision_advice(module)]
    return [*findings, *leaks, *(Finding("warning", "advice", line) for line in settings)]


if __name__ == "__main__":
    main()
