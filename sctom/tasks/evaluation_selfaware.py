"""SelfAware as a task: does the model know what it knows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sctom.readers import Row
from sctom.rewards.selfaware import is_idk_response
from sctom.tasks.answers import short_answer
from sctom.tasks.evaluation_base import Scored, Task, abstains, asked, judged_of, known
from sctom.tasks.selfaware import Detector, Verdict, abstention_metrics, judge, prompt_row


class SelfAware(Task):
    """SelfAware, judged by the explicit label of a question as `sctom.tasks.selfaware.judge` does.

    Right is the answer to an answerable question and the abstention on another; `right` is the
    share of that. The other metrics are those of `abstention_metrics`, so `accuracy` is that of the
    answerable questions alone, beside the five cells they are made of: correct, wrong and refused
    of the `answerable`, admitted and invented of the `unanswerable`.

    The source finds abstentions by 16 phrases and else by sentence embeddings, skips empty
    completions, and looks for answers as substrings; here the reward's own rules decide, so that
    what is reported is what was trained on.

    Args:
        detector: "patterns" as the reward `SelfAware`, "strict" as `SelfAwareStrict`.

    >>> task = SelfAware()
    >>> rows = task.read()
    >>> scored = task.score_all(rows[:2], ["It is Oslo.", "I'm not sure."])
    >>> [(one.correct, one.abstained, one.details["answerable"]) for one in scored]
    [(True, False, True), (True, True, False)]
    >>> task.metrics(scored)["abstention_f1"]
    1.0
    """

    name = "selfaware"
    headline = "abstention_f1"
    samples = ("sctom:tasks/selfaware.jsonl",)
    columns: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}

    def __init__(self, detector: Detector = "patterns") -> None:
        judge("", "-", True, detector=detector)  # refuses one that there is not
        self.detector: Detector = detector

    def check(self, row: Row, place: str) -> Row:
        """A row of messages that end with the reference answer, as `prompt_row` makes of it."""
        return prompt_row(row, place)

    def extract(self, text: str) -> str | None:
        """The answer in short, None for what the detector takes for an abstention."""
        idk = is_idk_response(text) if self.detector == "patterns" else abstains(text)
        return None if idk else short_answer(text)

    def score(self, row: Row, text: str) -> Scored:
        """Judge one completion."""
        verdict = judge(
            text,
            row["expected_answer"],
            row["answerable"],
            kind=row.get("kind"),
            detector=self.detector,
            answers=row.get("answers") or None,
            question=asked(row),
        )
        details = {
            **known(row),
            "answerable": verdict.answerable,
            "hedged": verdict.hedged,
            "kind": verdict.kind,
        }
        right = verdict.correct if verdict.answerable else verdict.abstained
        extracted = None if verdict.abstained else short_answer(text)
        return Scored(right, verdict.abstained, extracted, details)

    def metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The numbers of `abstention_metrics`, `right`, the five cells and n."""
        verdicts = [verdict_of(one) for one in judged_of(scored)]
        answerable = [verdict for verdict in verdicts if verdict.answerable]
        refused = sum(verdict.abstained for verdict in answerable)
        correct = sum(verdict.correct for verdict in answerable)
        admitted = sum(verdict.abstained for verdict in verdicts) - refused
        unanswerable = len(verdicts) - len(answerable)
        return {
            "n": len(verdicts),
            "answerable": len(answerable),
            "unanswerable": unanswerable,
            "correct": correct,
            "wrong": len(answerable) - correct - refused,
            "refused": refused,
            "admitted": admitted,
            "invented": unanswerable - admitted,
            "right": (correct + admitted) / len(verdicts),
            **abstention_metrics(verdicts),
        }


def verdict_of(one: Scored) -> Verdict:
    """What `sctom.tasks.selfaware` and the metrics of calibration are computed from."""
    answerable, details = one.details["answerable"], one.details
    correct = bool(one.correct) and answerable
    return Verdict(answerable, correct, one.abstained, details["hedged"], details["kind"])
