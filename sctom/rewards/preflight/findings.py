"""What the values of rewards mean for a run: findings with a number, a consequence, a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, pstdev
from typing import Any, Literal

from sctom.rewards.preflight.calls import Scored
from sctom.rewards.preflight.cases import ANSWERS, PROBES, Golden, gold_columns
from sctom.rewards.preflight.summary import numbers, totals

Level = Literal["failure", "warning"]

CODES = {
    "check": "the reward's own check fails: no sandbox, no judge, a server that cannot be reached",
    "raises": "it raises or gives a Failure; a failure where the run would stop, else a warning",
    "not-finite": "NaN, an infinity or something that is no number",
    "wrong-count": "not one value for each completion",
    "hangs": "a call does not come back within the deadline",
    "abstains": "no value for half of the completions; a failure where it has none at all",
    "batch-dependent": "cached, but the value of a completion depends on the others of its call",
    "random": "cached, but two calls with the same completion differ",
    "constant": "one value for everything; a failure where no other reward of the run varies",
    "nearly-constant": "0, or 1, for at least 95% of the completions",
    "no-variance": "groups in which no completion is better than another; a failure where all are",
    "scale": "a value beyond 100",
    "drowned": "one reward varies more than 20 times as much as another, weights included",
    "length-only": "the value is a linear function of the length (correlation beyond 0.95)",
    "no-incentive": "a completion without content scores at least as much as the expected answer",
    "empty-gold": "rows of the data without an expected answer; a failure where all are",
    "truncated": "sampled completions cut off by max_new_tokens (over 25%)",
    "golden": "a golden sample does not score what it must",
    "advice": "what the training data and settings imply (class balance, groups of two, ...)",
    "label-leak": "two labels of a row disagree",
}
"""Code of a finding -> what it tells."""

ALMOST, SHARE, LARGE, DROWN, LINEAR, CUT = 0.95, 0.8, 100.0, 20.0, 0.95, 0.25


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    level: Level
    code: str
    message: str
    reward: str = ""
    """Name of the reward, "" for the total, the data or the run."""


def judge(
    scored: Sequence[Scored],
    sizes: Sequence[int],
    columns: Mapping[str, Sequence[Any]],
    *,
    real: bool,
    opened: str = "",
    summed_raw: bool = True,
    max_failures: float = 0.8,
) -> list[Finding]:
    """All that the values of the rewards tell.

    Args:
        scored: each reward of the run on the same cases.
        sizes: completions of each group.
        columns: column of the training data -> its values, for expected answers.
        real: the completions were sampled or given, so that groups are those of a run.
        opened: a tag that the chat template has opened in front of the completions, "" for none.
        summed_raw: rewards are added up as they are, so that one may drown another.
        max_failures: share of errors at which the run stops.
    """
    summed = totals(scored, sizes)
    found: list[Finding] = []
    for one in scored:
        found += _troubles(one, max_failures)
        if not one.troubles or numbers(one.values):
            found += _values(one, scored, columns, real, opened)
    found += _empty_gold(scored, columns)
    if real:
        found += _groups(summed, sizes)
        found += _truncated(scored)
    else:
        found += _no_incentive(scored, summed, sizes)
    return [*found, *(_drowned(scored) if summed_raw else [])]


def _troubles(one: Scored, max_failures: float) -> Iterator[Finding]:
    """What came back as no value at all, and what a reward did besides."""
    name = one.reward.name
    for code in dict.fromkeys(trouble.code for trouble in one.troubles.values()):
        rows = [row for row, trouble in one.troubles.items() if trouble.code == code]
        said = one.troubles[rows[0]].message.partition("\n")[0]  # the table has all of it
        share = len(rows) / len(one.cases)
        case = one.cases[rows[0]]
        example = f"first: {case.place}, completion {case.completion!r:.60}"
        policy = one.reward.on_error
        fatal = code == "wrong-count" or policy == "raise" or share >= max_failures
        happens = "the run would stop" if fatal else f"the run goes on (on_error: {policy})"
        if code == "hangs":
            remedy = "give it a timeout of its own, or let workers that can be killed compute it"
            told = f"{said} ({example}), so the run would wait for ever; {remedy}"
            yield Finding("failure", code, told, name)
            continue
        remedy = "mend the reward, or let it return None for what it cannot judge"
        if policy != "raise":
            remedy = "mend what it says, or these rows of the data"
        count = f"{len(rows)} of {len(one.cases)} completions ({example})"
        level: Level = "failure" if fatal else "warning"
        yield Finding(level, code, f"{said}; for {count}, so {happens}; {remedy}", name)


def _values(
    one: Scored,
    scored: Sequence[Scored],
    columns: Mapping[str, Sequence[Any]],
    real: bool,
    opened: str,
) -> Iterator[Finding]:
    name, spoken = one.reward.name, numbers(one.values)
    silent = sum(v is None for row, v in enumerate(one.values) if row not in one.troubles)
    if not spoken:
        told = (
            f"it abstains on all {len(one.values)} completions, so it takes no part in the run; "
            "check the columns it reads and the format it expects"
        )
        yield Finding("failure", "abstains", told, name)
        return
    if silent >= 0.5 * len(one.values):
        told = (
            f"it abstains on {silent} of {len(one.values)} completions, which take no part in "
            "updates where others of their group are judged; check the format it expects"
        )
        yield Finding("warning", "abstains", told, name)
    largest = max(spoken, key=abs)
    if abs(largest) > LARGE:
        told = (
            f"it gives {largest:g}, which is beyond {LARGE:g}: other rewards are nothing beside "
            "it, and objectives without a scale take huge steps; divide it"
        )
        yield Finding("warning", "scale", told, name)
    yield from _constant(one, scored, columns, real, opened)
    yield from _length_only(one)


def _constant(
    one: Scored,
    scored: Sequence[Scored],
    columns: Mapping[str, Sequence[Any]],
    real: bool,
    opened: str,
) -> Iterator[Finding]:
    spoken = numbers(one.values)
    name, count = one.reward.name, len(spoken)
    shares = {value: sum(entry == value for entry in spoken) / count for value in set(spoken)}
    value, share = max(shares.items(), key=lambda item: item[1])
    on = f"all {count} completions" if real else f"all {count} probes"
    remedy = f"check the format it expects, here of {one.cases[0].completion!r:.40}"
    if not real:
        remedy = "check the format it expects; --sample or --responses shows it real completions"
    if opened and value == 0.0:
        remedy = (
            f"the chat template has opened {opened} already, so completions begin behind it; use a "
            "reward that does not ask for it (ThinkFormatReward: prefilled: true)"
        )
    if len(shares) == 1:
        varied = [o for o in scored if o is not one and o.reward.weight and _varies(o)]
        told_right = real or bool(gold_columns([one.reward], columns))
        fatal = told_right and bool(one.reward.weight) and not varied
        told = f"it is {value:g} for {on}, so it teaches nothing; {remedy}"
        yield Finding("failure" if fatal else "warning", "constant", told, name)
    elif value in (0.0, 1.0) and share >= ALMOST:
        hard = "too hard, or its format is not met" if value == 0.0 else "too easy"
        told = (
            f"it is {value:g} for {share:.0%} of {count} completions, so most groups teach nothing "
            f"(it is {hard}); {remedy}"
        )
        yield Finding("warning", "nearly-constant", told, name)


def _varies(one: Scored) -> bool:
    return len(set(numbers(one.values))) > 1


def _length_only(one: Scored) -> Iterator[Finding]:
    pairs = [
        (float(len(case.ids)), value)
        for case, value in zip(one.cases, one.values, strict=True)
        if value is not None and case.kind != "long"
    ]
    if len(pairs) < 8 or any(len(set(column)) < 3 for column in zip(*pairs, strict=True)):
        return
    lengths, values = zip(*pairs, strict=True)
    found = correlation(lengths, values)
    if abs(found) > LINEAR:
        wish = "longer" if found > 0 else "shorter"
        told = (
            f"its correlation with the length of the completion is {found:.2f}, so it asks for "
            f"{wish} completions and nothing else; if that is not what it is for, look at what it "
            "counts"
        )
        yield Finding("warning", "length-only", told, one.reward.name)


def _empty_gold(
    scored: Sequence[Scored], columns: Mapping[str, Sequence[Any]]
) -> Iterator[Finding]:
    for column in gold_columns([one.reward for one in scored], columns):
        values = columns[column]
        empty = [row for row, value in enumerate(values) if _is_blank(value)]
        if empty:
            share = f"{len(empty):,} of {len(values):,} rows (first: row {empty[0] + 1})"
            told = (
                f"{column} is empty in {share}, so no completion can be right there or every one "
                "is; mend or drop these rows"
            )
            level: Level = "failure" if len(empty) == len(values) else "warning"
            yield Finding(level, "empty-gold", told)


def _is_blank(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_blank(entry) for entry in value)
    return value is None or (isinstance(value, str) and not value.strip())


def _groups(summed: Sequence[float], sizes: Sequence[int]) -> Iterator[Finding]:
    groups, start = [], 0
    for size in sizes:
        groups.append(numbers(summed[start : start + size]))
        start += size
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return
    dead = sum(max(group) - min(group) <= 1e-6 for group in groups)
    if dead / len(groups) >= SHARE:
        told = (
            f"in {dead} of {len(groups)} groups no completion is better than another, so they "
            "teach nothing; change the reward, the questions, group_size or the temperature"
        )
        yield Finding("failure" if dead == len(groups) else "warning", "no-variance", told)


def _truncated(scored: Sequence[Scored]) -> Iterator[Finding]:
    sampled = [case for case in scored[0].cases if case.kind == "sampled"]
    cut = sum(case.truncated for case in sampled)
    if sampled and cut / len(sampled) > CUT:
        told = (
            f"{cut} of {len(sampled)} sampled completions are cut off, so their rewards judge "
            "unfinished texts; raise model.sampling.max_new_tokens, or ask for shorter answers"
        )
        yield Finding("warning", "truncated", told)


def _no_incentive(
    scored: Sequence[Scored], summed: Sequence[float], sizes: Sequence[int]
) -> Iterator[Finding]:
    """Whether a probe without content beats all that hold the expected answer."""
    cases = scored[0].cases
    beaten: dict[str, int] = dict.fromkeys(PROBES, 0)
    groups, start = 0, 0
    for size in sizes:
        rows = range(start, start + size)
        start += size
        best = [summed[r] for r in rows if cases[r].kind in ANSWERS and summed[r] == summed[r]]
        if not best:
            continue
        groups += 1
        gold = next(cases[r].completion for r in rows if cases[r].kind == "expected")
        for row in rows:
            if cases[row].kind not in ANSWERS and cases[row].completion.strip() != gold.strip():
                beaten[cases[row].kind] += summed[row] >= max(best)
    for kind, count in beaten.items():
        if groups and count > groups / 2:
            told = (
                f"{PROBES[kind]} ({kind}) scores at least as much as the expected answer in "
                f"{count} of {groups} rows, so there is nothing to learn from the answer; check "
                "that the rewards read the answers in the format the data have"
            )
            yield Finding("warning", "no-incentive", told)


def _drowned(scored: Sequence[Scored]) -> Iterator[Finding]:
    spread = {
        one.reward.name: abs(one.reward.weight) * pstdev(numbers(one.values))
        for one in scored
        if one.reward.weight and _varies(one)
    }
    if len(spread) < 2:
        return
    loud, quiet = max(spread, key=spread.__getitem__), min(spread, key=spread.__getitem__)
    ratio = spread[loud] / spread[quiet]
    if ratio > DROWN:
        told = (
            f"{loud} varies {ratio:.3g} times as much as {quiet}, weights included, so {quiet} "
            f"decides next to nothing; raise its weight, or lower that of {loud}"
        )
        yield Finding("warning", "drowned", told, quiet)


def judge_golden(scored: Sequence[Scored], golden: Sequence[Golden]) -> list[Finding]:
    """The golden samples that do not score what they must.

    Args:
        scored: each reward on the golden samples, each of which is a group of its own.
        golden: the samples.
    """
    values = {one.reward.name: one.values for one in scored}
    values["total"] = [*totals(scored, [1] * len(golden))]
    found = []
    for row, sample in enumerate(golden):
        for name, bounds in sample.expected.items():
            value = values[name][row]
            if value is not None and math.isnan(value):
                value = None
            if _fits(value, bounds):
                continue
            wanted = "no value" if bounds is None else _range(*bounds)
            given = "no value" if value is None else f"{value:g}"
            trouble = next((o.troubles[row] for o in scored if row in o.troubles), None)
            why = "" if trouble is None else f" ({trouble.message})"
            told = (
                f"{sample.case.place}: {name} gives {given}{why} for {sample.case.completion!r:.60}"
                f" and not {wanted}; mend the reward, or the sample"
            )
            found.append(Finding("failure", "golden", told, "" if name == "total" else name))
    return found


def _fits(value: float | None, bounds: tuple[float, float] | None) -> bool:
    if value is None or bounds is None:
        return value is None and bounds is None
    return bounds[0] - 1e-6 <= value <= bounds[1] + 1e-6


def _range(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"from {low:g} to {high:g}"


def judge_cached(name: str, repeated: bool, alone: bool) -> list[Finding]:
    """What a cache does to a reward that is not a function of one completion.

    Args:
        name: of the reward.
        repeated: a second call gave the same values.
        alone: rows one by one gave the same values.
    """
    if not repeated:
        told = (
            "two calls with the same completions differ, so the cache keeps the first draw of each "
            "for good; set its cache to 0"
        )
        return [Finding("warning", "random", told, name)]
    if not alone:
        told = (
            "its value for a completion depends on the others of the call, so the cache gives "
            "values of other groups; set its cache to 0"
        )
        return [Finding("failure", "batch-dependent", told, name)]
    return []
