"""docs/fast_path.md: what it shows works as it shows it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fast_path.md"


def test_the_example_runs():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 5 and not failed


@pytest.mark.parametrize("path", re.findall(r"`(\w+/\w+\.py)`", PAGE.read_text()))
def test_the_files_it_names_are_there(path: str):
    assert (ROOT / "sctom" / path).is_file()
