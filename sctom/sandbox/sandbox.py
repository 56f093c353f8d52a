"""Running code that nobody trusts: one fresh, confined interpreter for each use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sctom.sandbox.interpreter import interpreter
from sctom.sandbox.limits import Level, LevelName, Limits
from sctom.sandbox.plain import Plain
from sctom.sandbox.probe import failing_imports, find
from sctom.sandbox.session import Session


class Sandbox:
    """A place to run code that nobody trusts.

    Every use gets a fresh interpreter without network, environment, or any file but its own
    working directory and, for reading, Python and what is installed; see docs/security.md.

    Args:
        level: "auto" for the best that works here, or the only one to accept.
        limits: what the code may use.
        libraries: whether installed packages can be imported.
        unsafe: where nothing better works, run with resource limits only. That contains mistakes;
            it does not contain an attack.

    >>> Sandbox().run("def double(x): return 2 * x", "double", [21])
    42
    """

    def __init__(
        self,
        level: Literal["auto", "bubblewrap", "landlock", "seatbelt", "unsafe"] = "auto",
        limits: Limits | None = None,
        libraries: bool = True,
        unsafe: bool = False,
    ) -> None:
        self.wanted = level
        self.limits = limits or Limits()
        self.libraries = libraries
        self.unsafe = unsafe

    @property
    def level(self) -> LevelName:
        """The name of the level in use.

        Raises:
            SandboxUnavailable: nothing safe works here.
        """
        return find(self.wanted, unsafe=self.unsafe)[1].name

    def check(self) -> Level:
        """Run the canary, and import what is installed of the libraries; once per process.

        Returns:
            The level reached, with notes on what was tried and on libraries that cannot be used.

        Raises:
            SandboxUnavailable: nothing safe works here; the text says what to install.
        """
        backend, level = find(self.wanted, unsafe=self.unsafe)
        if not self.libraries:
            return level
        return replace(level, notes=(*level.notes, *failing_imports(backend, self.limits)))

    def open(self, source: str, *, limits: Limits | None = None) -> Session:
        """A fresh interpreter that has executed a source.

        Args:
            source: Python, executed as a module named "candidate", so that what stands under
                `if __name__ == "__main__":` is not.
            limits: in place of the sandbox's.

        Raises:
            CodeError: executing the source failed.
            SandboxUnavailable: nothing safe works here.
        """
        backend, _ = find(self.wanted, unsafe=self.unsafe)
        python = interpreter(libraries=self.libraries)
        return Session(backend, python, limits or self.limits, source)

    def run(self, source: str, name: str, args: Sequence[Plain] = ()) -> Plain:
        """Open, call one global, close.

        Raises:
            CodeError: there is no value.
            SandboxUnavailable: nothing safe works here.
        """
        with self.open(source) as session:
            return session.call(name, args)
