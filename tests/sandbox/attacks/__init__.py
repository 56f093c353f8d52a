"""Attacks on the sandbox, as data. Never run the source of one anywhere but inside it."""

from __future__ import annotations

from tests.sandbox.attacks.base import PRELUDE, SHORT, Attack
from tests.sandbox.attacks.breaking import BREAKING
from tests.sandbox.attacks.endless import ENDLESS
from tests.sandbox.attacks.files import FILES
from tests.sandbox.attacks.kernel import KERNEL
from tests.sandbox.attacks.memory import MEMORY
from tests.sandbox.attacks.network import NETWORK
from tests.sandbox.attacks.processes import PROCESSES
from tests.sandbox.attacks.reading import READING
from tests.sandbox.attacks.values import VALUES

ATTACKS: dict[str, list[Attack]] = {
    "time": ENDLESS,
    "memory": MEMORY,
    "processes": PROCESSES,
    "files and disk": FILES,
    "secrets": READING,
    "network": NETWORK,
    "kernel": KERNEL,
    "crashes and floods": BREAKING,
    "answers": VALUES,
}

__all__ = ["ATTACKS", "PRELUDE", "SHORT", "Attack"]
