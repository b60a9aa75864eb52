"""The rules of a v1 device cgroup, as security/device_cgroup.c of the kernel keeps them. Pure."""

from __future__ import annotations

import errno
import os
from typing import NoReturn, Optional

from gpuguard.errors import RuleError
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import ALLOW_ALL

ALLOW = "allow"
DENY = "deny"

_Device = tuple[str, Optional[int], Optional[int]]


class DeviceGroup:
    """One device cgroup: a default and the exceptions to it, which is how the kernel stores a list."""

    def __init__(self, parent: Optional[DeviceGroup] = None) -> None:
        self.parent = parent
        self.children: list[DeviceGroup] = []
        self.default_allow: bool = parent.default_allow if parent else True
        # In the order of devices.list: the kernel appends and merges in place.
        self._exceptions: dict[_Device, Access] = dict(parent._exceptions) if parent else {}
        if parent:
            parent.children.append(self)

    def list_text(self) -> str:
        """Return the text of devices.list. A group that allows by default hides its exceptions."""
        if self.default_allow:
            return ALLOW_ALL + "\n"
        return "".join(f"{rule}\n" for rule in self._rules())

    def write(self, verb: str, text: str, *, has_children: bool) -> None:
        """Take a text that was given to devices.allow or devices.deny. Raises OSError as the system call would.

        `has_children` comes from outside, since a cgroup that somebody else made counts as well.
        """
        if text.startswith("a"):
            self._write_all(verb, has_children=has_children)
            return
        try:
            rule = Rule.parse(text.rstrip("\n"))
        except RuleError:
            _refuse(errno.EINVAL)
        if verb == ALLOW:
            self._allow(rule)
        else:
            self._deny(rule)

    def _write_all(self, verb: str, *, has_children: bool) -> None:
        if has_children:
            _refuse(errno.EINVAL)
        if verb == ALLOW and self.parent:
            if not self.parent.default_allow:
                _refuse(errno.EPERM)
            self._exceptions = dict(self.parent._exceptions)
        else:
            self._exceptions = {}
        self.default_allow = verb == ALLOW

    def _allow(self, rule: Rule) -> None:
        if self.default_allow:
            if self.parent and self.parent._overlaps(rule):
                _refuse(errno.EPERM)
            self._remove(rule)
            return
        if not self._parent_permits(rule):
            _refuse(errno.EPERM)
        self._add(rule)

    def _deny(self, rule: Rule) -> None:
        if self.default_allow:
            self._add(rule)
        else:
            self._remove(rule)
        self._propagate(rule)

    def _propagate(self, rule: Rule) -> None:
        for child in self.children:
            if child.default_allow:
                child._add(rule)
            else:
                child._remove(rule)
            child._drop_what_the_parent_forbids()
            child._propagate(rule)

    def _drop_what_the_parent_forbids(self) -> None:
        for rule in self._rules():
            if not self._parent_permits(rule):
                self._remove(rule)

    def _parent_permits(self, rule: Rule) -> bool:
        parent = self.parent
        if parent is None:
            return True
        if parent.default_allow:
            return self.default_allow or not parent._overlaps(rule)
        return any(entry.covers(rule) for entry in parent._rules())

    def _overlaps(self, rule: Rule) -> bool:
        return any(
            entry.kind == rule.kind
            and (None in {entry.major, rule.major} or entry.major == rule.major)
            and (None in {entry.minor, rule.minor} or entry.minor == rule.minor)
            and bool(entry.access & rule.access)
            for entry in self._rules()
        )

    def _add(self, rule: Rule) -> None:
        device = (rule.kind, rule.major, rule.minor)
        self._exceptions[device] = self._exceptions.get(device, Access.NONE) | rule.access

    def _remove(self, rule: Rule) -> None:
        device = (rule.kind, rule.major, rule.minor)
        left = self._exceptions.get(device, Access.NONE) & ~rule.access
        if left:
            self._exceptions[device] = left
        else:
            self._exceptions.pop(device, None)

    def _rules(self) -> list[Rule]:
        return [Rule(*device, access) for device, access in self._exceptions.items()]


def _refuse(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))
