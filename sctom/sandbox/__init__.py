"""Code that nobody trusts, run where it can do no harm; docs/security.md says what that means."""

from sctom.sandbox.limits import CodeError, Level, Limits, SandboxUnavailable
from sctom.sandbox.plain import Iter, NotPlain, Opaque, Plain
from sctom.sandbox.sandbox import Sandbox
from sctom.sandbox.session import Session

__all__ = [
    "CodeError",
    "Iter",
    "Level",
    "Limits",
    "NotPlain",
    "Opaque",
    "Plain",
    "Sandbox",
    "SandboxUnavailable",
    "Session",
]
