"""How the strict reward reads the answers of SelfAware, and where the seed's reward reads others.

    python scripts/selfaware_audit.py --source path/to/SelfAware.json

Prints the numbers of docs/rewards.md, "Checked on SelfAware".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sctom.rewards.selfaware import holds_answer
from sctom.rewards.selfaware_strict import strict_outcome

FORMS = ("{}", "It is {}.", "I think the answer is {}")
SHOTGUN = " ".join(["yes no", *map(str, range(1, 101)), *map(str, range(1800, 2026))])
ABSTENTIONS = {"abstained", "unanswerable_abstained"}


def outcome(text: str, row: dict[str, Any], **settings: Any) -> str:
    """What the strict reward sees in a text as the completion of a row."""
    answers = row["answer"] or []
    return strict_outcome(text, answers, row["answerable"], row["question"], **settings)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="SelfAware.json")
    rows = json.loads(parser.parse_args().source.read_text())["example"]
    known = [row for row in rows if row["answerable"]]
    for form in FORMS:
        seen = [outcome(form.format(row["answer"][0]), row) for row in known]
        right, given_up = seen.count("correct"), sum(o in ABSTENTIONS for o in seen)
        print(f"first answer in {form!r}: {right} of {len(known)} right, {given_up} abstentions")
    accepted = [(answer, row) for row in known for answer in row["answer"]]
    right = sum(outcome(answer, row) == "correct" for answer, row in accepted)
    print(f"all accepted answers: {right} of {len(accepted)} right")
    idk = sum(outcome("I don't know.", row) in ABSTENTIONS for row in rows)
    print(f'"I don\'t know.": an abstention on {idk} of {len(rows)}')
    seed = sum(holds_answer(SHOTGUN, row["answer"][0]) for row in known)
    strict = sum(outcome(SHOTGUN, row, max_words=None) == "correct" for row in known)
    print(f"yes, no, 1 to 100, 1800 to 2025: right {seed} times for SelfAware, {strict} here")


if __name__ == "__main__":
    main()
