"""The table of attacks in docs/security.md: runs every one of them inside each sandbox that works.

    python -m scripts.attack_table --write

Takes about half a minute for each level. Nothing is run outside of a sandbox, and nothing at all
where a harmless probe shows that the sandbox does not confine. The exit status is 1 if any attack
succeeds.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from sctom.sandbox import Sandbox, SandboxUnavailable
from tests.rewards.forgeries import FORGERIES
from tests.rewards.test_forged_programs import FORMS, RIGHT, rewards, sandbox_of
from tests.sandbox.attacks import ATTACKS
from tests.sandbox.campaign import campaign

BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
LEVELS = ("bubblewrap", "landlock", "seatbelt")
PAGE = Path(__file__).parents[1] / "docs" / "security.md"
FORGED = "a wrong program gets more than 0, or no verdict"
Breaches = Mapping[str, str]


def attacked(level: str) -> Breaches | None:
    """What each attack achieved on a level, "" for nothing; None where the level does not work.

    Args:
        level: as of `Sandbox`.
    """
    sandbox = Sandbox(level=level)  # type: ignore[arg-type]
    try:
        print(f"{level}: {sandbox.check()}")
    except SandboxUnavailable as error:
        print(f"{level}: {error}")
        return None
    outcomes, left = campaign(sandbox)
    found = {name: "; ".join(outcome.breaches) for name, outcome in outcomes.items()}
    found["files left behind by all of them"] = "; ".join(left)
    return found | forged(level)


def forged(level: str) -> Breaches:
    """What each wrong program got in either form of tests, "" for a zero in both.

    Raises:
        RuntimeError: the right program does not pass, so that zeros mean nothing.
    """
    found = dict.fromkeys((forgery.name for forgery in FORGERIES), "")
    for form, columns in FORMS.items():
        programs = [RIGHT, *(forgery.program for forgery in FORGERIES)]
        right, *values = rewards(sandbox_of(level), programs, **columns)
        if right != 1.0:
            raise RuntimeError(f"{level}, {form}: the right program got {right}")
        for name, value in zip(found, values, strict=True):
            if value != 0.0:
                found[name] += f"{form}: {value} "
    return found


def table(results: Mapping[str, Breaches]) -> str:
    """Markdown: one row for each attack, one column for each level that was run.

    Args:
        results: by level.

    >>> line = table({"landlock": dict.fromkeys(_names(), "")}).splitlines()[2]
    >>> line
    '| time | endless loop | the call outlives its deadline | contained |'
    """
    lines = [["", "attack", "it would have succeeded if", *results]]
    lines.append(["---"] * len(lines[0]))
    for group, name, success in _rows():
        verdicts = [
            f"**NO**: {found[name]}" if found[name] else "contained" for found in results.values()
        ]
        lines.append([group, name, success, *verdicts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows() -> list[tuple[str, str, str]]:
    rows = [(group, a.name, a.success) for group, attacks in ATTACKS.items() for a in attacks]
    rows.append(("all", "files left behind by all of them", "a file is left where ours are made"))
    return rows + [("verdict", forgery.name, FORGED) for forgery in FORGERIES]


def _names() -> list[str]:
    return [name for _, name, _ in _rows()]


def section(results: Mapping[str, Breaches]) -> str:
    """What goes between the markers."""
    where = (
        f"Linux {platform.release().split('-')[0]}"
        if platform.system() == "Linux"
        else platform.platform()
    )
    total = len(_rows())
    kept = ", ".join(
        f"{sum(not text for text in found.values())} of {total} by {level}"
        for level, found in results.items()
    )
    return (
        f"{BEGIN}\n## Attacks\n\nContained: {kept} ({where}, {platform.machine()}). Made by "
        "`python -m scripts.attack_table --write`; the sources\nare `tests/sandbox/attacks/` and "
        f"`tests/rewards/forgeries.py`, and the tests run all of them.\n\n{table(results)}\n{END}"
    )


def filled(page: str, text: str) -> str:
    r"""The page with the section in the place of the old one, or at its end.

    >>> filled("# Page", "new")
    '# Page\n\nnew\n'
    >>> filled(f"a\n{BEGIN}old{END}\nb", "new")
    'a\nnew\nb'
    """
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if begun and ended:
        return f"{before}{text}{after}"
    return f"{page.rstrip()}\n\n{text}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks; print the table or write it into docs/security.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args(arguments)
    tried = {level: attacked(level) for level in LEVELS}
    results = {level: found for level, found in tried.items() if found is not None}
    if not results:
        raise SystemExit("no sandbox works here; nothing was run")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(filled(page, section(results)), encoding="utf-8")
    else:
        print(section(results))
    return int(any(text for found in results.values() for text in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
