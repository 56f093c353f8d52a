from __future__ import annotations

import pytest

from scripts.attack_table import BEGIN, END, FORGED, PAGE, attacked, filled, main, table
from tests.rewards.forgeries import FORGERIES
from tests.sandbox.attacks import ATTACKS

ATTACK_NAMES = [attack.name for attacks in ATTACKS.values() for attack in attacks]
NAMES = [*ATTACK_NAMES, "files left behind by all of them", *(f.name for f in FORGERIES)]


def test_the_page_has_every_attack_and_none_has_succeeded():
    section = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in r.split("|")[1:-1]] for r in section.splitlines() if "|" in r]
    assert [row[1] for row in rows[2:]] == NAMES  # run: python -m scripts.attack_table --write
    assert {cell for row in rows[2:] for cell in row[3:]} == {"contained"}


def test_a_row_says_what_got_through():
    found = {**dict.fromkeys(NAMES, ""), "nothing": "MBPP: 1.0 "}
    last = [line for line in table({"landlock": found}).splitlines() if "| nothing |" in line]
    assert last == [f"| verdict | nothing | {FORGED} | **NO**: MBPP: 1.0  |"]


def test_the_section_is_replaced_or_put_at_the_end():
    assert filled("# Page\n", "new") == "# Page\n\nnew\n"
    assert filled(f"a\n{BEGIN}old{END}\nb", "new") == "a\nnew\nb"
    assert filled(f"a{BEGIN}", "new") == f"a{BEGIN}\n\nnew\n"


def test_a_level_that_is_not_there_has_no_column(monkeypatch):
    monkeypatch.setattr("scripts.attack_table.LEVELS", ("seatbelt",))
    monkeypatch.setattr("sctom.sandbox.probe.platform.system", lambda: "Linux")
    assert attacked("seatbelt") is None
    with pytest.raises(SystemExit, match="nothing was run"):
        main([])
