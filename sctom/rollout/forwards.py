"""Other ways to compute a module for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]


@contextmanager
def replaced_forwards() -> Iterator[Callable[[nn.Module, Forward], None]]:
    """Gives a function that replaces the forward of a module until the context ends.

    It ends by an exception too. Only `is_untouched` modules may be given.

    >>> layer = nn.Identity()
    >>> with replaced_forwards() as replace:
    ...     replace(layer, lambda x: x + 1)
    ...     layer(2)
    3
    >>> layer(2)
    2
    """
    replaced: list[nn.Module] = []

    def replace(module: nn.Module, forward: Forward) -> None:
        module.forward = forward
        replaced.append(module)

    try:
        yield replace
    finally:
        for module in replaced:
            vars(module).pop("forward", None)


def is_untouched(module: nn.Module) -> bool:
    """Whether a module computes what its class says, on parameters that are here and whole.

    A hook or a forward of its own means that something else happens on a call, such as fetching
    weights; a parameter of another type may be quantised or sharded.
    """
    own = vars(module)
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
        return False
    weights = module.parameters(recurse=False)
    return all(type(w) is nn.Parameter and w.device.type != "meta" for w in weights)
