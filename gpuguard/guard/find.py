"""Which scope an operator means: by a scope's name, an id or the beginning of one, or a container's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from gpuguard.errors import NotFoundError
from gpuguard.guard.guard import Guard
from gpuguard.guard.scope import Scope
from gpuguard.model.container_name import short_id

# docker ps and crictl ps print 12 digits of an id.
_SHORTEST_ID = 12
_MOST_TOLD = 8
_MOST_MEANT = 3
# What is shorter is a part of everything; what is longer is like nothing, and to find that out takes long.
_SHORTEST = 3
_LONGEST = 1000


def find(guard: Guard, name: str) -> Scope:
    """Return the scope that a scope's name, an id, the first 12 digits of an id or a container's name mean.

    In Kubernetes also namespace/pod/name. Ids come before names, which users choose. Raises NotFoundError, which tells
    which containers go by a name that several have, or by one like it.
    """
    guarded = [scope for scope in guard.scopes.values() if scope.state is not None]
    for means, what, told in _WAYS:
        matches = [scope for scope in guarded if means(scope, name)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise NotFoundError(f"{name}: {len(matches)} GPU containers {what}:{_listed(matches, told)}")
    for scope in guard.scopes.values():
        why = scope.record.trouble or scope.record.refusal
        if why is not None and any(means(scope, name) for means, _, _ in _WAYS):
            raise NotFoundError(f"{name}: not known as a GPU container: {why}")
    meant = _alike(guarded, name)
    suggestion = f"; did you mean:{_listed(meant, _short)}" if meant else ""
    raise NotFoundError(
        f"{name}: no GPU container of this id, name or scope; `gpuguard status --all` lists them{suggestion}"
    )


def _begins(scope: Scope, name: str) -> bool:
    return len(name) >= _SHORTEST_ID and scope.container.id.startswith(name)


def _short(scope: Scope) -> str:
    return short_id(scope.container.id)


_WAYS: tuple[tuple[Callable[[Scope, str], bool], str, Callable[[Scope], str]], ...] = (
    (
        lambda scope, name: name in {scope.target.unit, scope.container.id},
        "have this id; give a scope",
        lambda scope: scope.target.unit,
    ),
    (_begins, "have an id that begins so; give all of it", lambda scope: scope.container.id),
    (lambda scope, name: name in scope.record.identity.names, "have this name; give an id", _short),
)


def _alike(scopes: Sequence[Scope], name: str) -> list[Scope]:
    """Return those that somebody who types this may mean: it is a part of what they are called, or nearly that."""
    if not _SHORTEST <= len(name) <= _LONGEST:
        return []
    found = [scope for scope in scopes if _part(scope, name)]
    if found:
        return found
    near = set(get_close_matches(name, {text for scope in scopes for text in _called(scope)}, _MOST_MEANT))
    return [scope for scope in scopes if near & _called(scope)]


def _part(scope: Scope, name: str) -> bool:
    return scope.container.id.startswith(name) or name in scope.record.identity.full_name


def _called(scope: Scope) -> frozenset[str]:
    return scope.record.identity.names | {_short(scope)}


def _listed(scopes: Iterable[Scope], told: Callable[[Scope], str]) -> str:
    """Return a line for each: what to type, whose it is, and what people call it."""
    lines = sorted(f"\n  {told(scope)}  {_who(scope)}" for scope in scopes)
    more = len(lines) - _MOST_TOLD
    return "".join(lines[:_MOST_TOLD]) + (f"\n  and {more} more" if more > 0 else "")


def _who(scope: Scope) -> str:
    return f"{scope.record.runtime or scope.container.runtime} {scope.record.identity.full_name}".rstrip()
