"""The v1 devices hierarchy as the kernel has it: what is read, written and refused. Needs root."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, DeniedError, GpuguardError
from gpuguard.kernel.devices_v1 import SHIELD, DevicesV1
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import ALLOW_ALL, RuleSet
from tests.kernel.groups import Groups
from tests.lab.poll import until

GPU0, GPU1, NULL = "c 195:0 rw", "c 195:1 rw", "c 1:3 rwm"
RULE = Rule.parse(GPU0)


class TestRead:
    """Reading devices.list."""

    def test_what_the_kernel_allows_and_whose_it_is(self, kernel: Groups) -> None:
        """The rules come with the inode of the group that they belong to."""
        inode = kernel.make(kernel.scope, NULL, GPU0)
        seen = kernel.devices.read(kernel.scope)
        assert (seen.inode, seen.rules) == (inode, RuleSet.of(NULL, GPU0))

    def test_no_filter(self, kernel: Groups) -> None:
        """A group that nobody restricted is unrestricted, not one without rules."""
        kernel.path(kernel.scope).mkdir()
        assert kernel.devices.read(kernel.scope).rules == RuleSet(unrestricted=True)

    def test_nothing_allowed(self, kernel: Groups) -> None:
        """An empty list denies everything: it is an answer."""
        kernel.make(kernel.scope)
        assert kernel.devices.read(kernel.scope).rules == RuleSet()

    def test_a_long_list(self, kernel: Groups) -> None:
        """A list longer than one page is read to its end."""
        rules = [f"c 240:{minor} rwm" for minor in range(600)]
        kernel.make(kernel.scope, *rules)
        assert kernel.devices.read(kernel.scope).rules == RuleSet.of(*rules)

    def test_an_unchanged_list_is_the_same_object(self, kernel: Groups) -> None:
        """Two looks at the same text give the same value, so that a change is told by identity."""
        kernel.make(kernel.scope, GPU0)
        first = kernel.devices.read(kernel.scope).rules
        assert kernel.devices.read(kernel.scope).rules is first

    def test_a_new_group_has_the_list_above_it(self, kernel: Groups) -> None:
        """The kernel copies the slice's list for a new scope, which is seen until somebody writes the scope's own."""
        kernel.make(kernel.slice, NULL, GPU0)
        kernel.path(kernel.scope).mkdir()
        assert kernel.devices.as_made(kernel.scope, kernel.devices.read(kernel.scope).rules)
        kernel.deny(kernel.scope, GPU0)
        assert not kernel.devices.as_made(kernel.scope, kernel.devices.read(kernel.scope).rules)

    def test_units_are_found_below_slices_alone(self, kernel: Groups) -> None:
        """Scopes and services that are wanted are found in slices at any depth, not what lies below them."""
        inner = f"{kernel.slice}/{kernel.slice[1:-6]}-x.slice"
        below = f"{kernel.scope}/docker-{'0' * 64}.scope"
        hidden = f"{kernel.slice}/not-a-slice"
        groups = [inner, kernel.scope, below, hidden, f"{hidden}/a.scope", f"{inner}/a.service", f"{inner}/b.scope"]
        for group in groups:
            kernel.path(group).mkdir()
        found = dict(kernel.devices.units(lambda name: name != "b.scope"))
        assert {group: found[group] for group in found if group.startswith(kernel.slice)} == {
            group: kernel.inode(group) for group in (kernel.scope, f"{inner}/a.service")
        }


class TestAllow:
    """Writing devices.allow."""

    @pytest.mark.invariant(3)
    def test_adds_just_that_rule(self, kernel: Groups) -> None:
        """One rule is added to the list, with its numbers and access, and the list says so when read back."""
        inode = kernel.make(kernel.scope, NULL)
        kernel.devices.allow(kernel.scope, inode, RULE)
        assert kernel.lines(kernel.scope) == [NULL, GPU0]
        assert kernel.devices.read(kernel.scope).rules == RuleSet.of(NULL, GPU0)

    def test_of_a_service(self, kernel: Groups) -> None:
        """A service is written like a scope."""
        service = f"{kernel.slice}/ollama.service"
        kernel.devices.allow(service, kernel.make(service), RULE)
        assert kernel.lines(service) == [GPU0]

    def test_below_a_scope(self, kernel: Groups) -> None:
        """What the ancestors deny is denied, and the error names the scope that does it."""
        kernel.make(kernel.scope, NULL)
        inner = f"{kernel.scope}/inner.scope"
        inode = kernel.make(inner)
        with pytest.raises(DeniedError, match=f"its ancestor {kernel.scope} denies it"):
            kernel.devices.allow(inner, inode, RULE)

    @pytest.mark.invariant(6)
    def test_the_highest_ancestor_that_denies_is_named(self, kernel: Groups) -> None:
        """Of several ancestors that deny, the error names the highest, where to begin."""
        inner = f"{kernel.slice}/{kernel.slice[1:-6]}-x.slice"
        scope = f"{inner}/docker-{secrets.token_hex(32)}.scope"
        kernel.make(kernel.slice, NULL, GPU1)
        kernel.make(inner, NULL)
        inode = kernel.make(scope)
        with pytest.raises(DeniedError, match=f"cannot allow 'c 195:0 rw': its ancestor {kernel.slice} denies it"):
            kernel.devices.allow(scope, inode, RULE)
        with pytest.raises(DeniedError, match=f"cannot allow 'c 195:1 rw': its ancestor {inner} denies it"):
            kernel.devices.allow(scope, inode, Rule.parse(GPU1))
        assert kernel.lines(kernel.slice) == [NULL, GPU1]
        assert kernel.lines(inner) == [NULL]

    def test_an_ancestor_that_hides_its_denial(self, kernel: Groups) -> None:
        """A group that allows by default does not show what it denies: then no ancestor is named."""
        kernel.deny(kernel.slice, "c 195:0 rwm")
        assert kernel.lines(kernel.slice) == [ALLOW_ALL]
        inode = kernel.make(kernel.scope)
        with pytest.raises(DeniedError, match="an ancestor denies it without showing it, or CAP_SYS_ADMIN is missing"):
            kernel.devices.allow(kernel.scope, inode, RULE)

    @pytest.mark.invariant(5)
    def test_not_of_a_namesake(self, kernel: Groups) -> None:
        """A group of the same name with another inode is refused, and gets nothing."""
        before = kernel.make(kernel.scope)
        kernel.path(kernel.scope).rmdir()
        kernel.make(kernel.scope, NULL)
        with pytest.raises(CgroupGoneError, match="another control group has taken this name"):
            kernel.devices.allow(kernel.scope, before, RULE)
        assert kernel.lines(kernel.scope) == [NULL]

    @pytest.mark.invariant(6)
    @pytest.mark.parametrize("group", ["slice", "root", "plain", "dots"])
    def test_not_of_anything_but_a_scope_or_service(self, kernel: Groups, group: str) -> None:
        """A slice, the root, a group of no unit and a path with dots are never written, whatever inode is given."""
        plain = f"{kernel.slice}/kubepods"
        for made in (kernel.slice, plain, kernel.scope):
            kernel.make(made)
        # Should this ever fail, it shall not be the machine's own root that was written: the slice stands for it.
        devices = DevicesV1(kernel.path(kernel.slice)) if group == "root" else kernel.devices
        name = {"slice": kernel.slice, "root": "/", "plain": plain, "dots": f"{kernel.scope}/.."}[group]
        path = devices.root / name.lstrip("/")
        inode = path.stat().st_ino
        for act in (devices.shield, devices.unshield):
            with pytest.raises(CgroupUnreadableError):
                act(name, inode)
        with pytest.raises(CgroupUnreadableError):
            devices.allow(name, inode, RULE)
        assert (path / "devices.list").read_text(encoding="ascii") == ""
        assert not (path / SHIELD).exists()


class TestGone:
    """Groups that end while they are looked at."""

    def test_before(self, kernel: Groups) -> None:
        """A group that is not there is gone, for reading, writing and the shield."""
        acts: list[Callable[[], object]] = [
            lambda: kernel.devices.read(kernel.scope),
            lambda: kernel.devices.allow(kernel.scope, 1, RULE),
            lambda: kernel.devices.shield(kernel.scope, 1),
            lambda: kernel.devices.unshield(kernel.scope, 1),
            lambda: kernel.devices.populated(kernel.scope),
        ]
        for act in acts:
            with pytest.raises(CgroupGoneError, match="the control group is gone"):
                act()

    @pytest.mark.parametrize("moment", ["open", "read", "write", "mkdir", "rmdir"])
    def test_in_the_middle(self, kernel: Groups, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
        """Whenever the group is removed (ENOENT, ENODEV), it is gone; that is never an unreadable group."""
        inode = kernel.make(kernel.scope, NULL)
        acts: dict[str, Callable[[], object]] = {
            "open": lambda: kernel.devices.read(kernel.scope),
            "read": lambda: kernel.devices.read(kernel.scope),
            "write": lambda: kernel.devices.allow(kernel.scope, inode, RULE),
            "mkdir": lambda: kernel.devices.shield(kernel.scope, inode),
            "rmdir": lambda: kernel.devices.unshield(kernel.scope, inode),
        }
        vanish_before(monkeypatch, moment, kernel.path(kernel.scope))
        if moment == "rmdir":  # a shield that went with its group was removed
            assert acts[moment]() is False
        else:
            with pytest.raises(CgroupGoneError, match="the control group is gone"):
                acts[moment]()

    def test_leaves_no_descriptor_open(self, kernel: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
        """However a call ends, it closes what it opened."""
        inode = kernel.make(kernel.scope, NULL)
        before = sorted(Path("/proc/self/fd").iterdir())
        kernel.devices.read(kernel.scope)
        kernel.devices.allow(kernel.scope, inode, RULE)
        with pytest.raises(CgroupGoneError):
            kernel.devices.allow(kernel.scope, inode + 1, RULE)
        vanish_before(monkeypatch, "write", kernel.path(kernel.scope))
        with pytest.raises(CgroupGoneError):
            kernel.devices.allow(kernel.scope, inode, RULE)
        with pytest.raises(CgroupGoneError):
            kernel.devices.read(kernel.scope)
        assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.invariant(2)
class TestShield:
    """The empty child that keeps systemd's deny-all off."""

    def test_deny_all_is_refused_and_allows_arrive(self, kernel: Groups) -> None:
        """Under the shield systemd's `a` to devices.deny gets EINVAL, and each of its allows is added."""
        inode = kernel.make(kernel.scope, NULL, GPU0)
        kernel.devices.shield(kernel.scope, inode)
        assert kernel.devices.shielded(kernel.scope)
        with pytest.raises(OSError, match="Invalid argument"):
            kernel.deny(kernel.scope, "a")
        kernel.allow(kernel.scope, GPU1)
        assert kernel.lines(kernel.scope) == [NULL, GPU0, GPU1]

    def test_goes_without_a_trace(self, kernel: Groups) -> None:
        """Removing the shield changes no rule, and a moment later a deny-all is a deny-all again."""
        inode = kernel.make(kernel.scope, NULL, GPU0)
        kernel.devices.shield(kernel.scope, inode)
        assert kernel.devices.unshield(kernel.scope, inode) is True
        assert not kernel.devices.shielded(kernel.scope)
        assert kernel.lines(kernel.scope) == [NULL, GPU0]
        until(lambda: denied_all(kernel), 30, "the end of the removed child in the kernel")  # 10 to 50 ms on 6.18
        assert kernel.lines(kernel.scope) == []

    def test_one_that_is_there_serves_as_well(self, kernel: Groups) -> None:
        """Making the shield twice is making it once, and removing it twice tells that there was none."""
        inode = kernel.make(kernel.scope, NULL)
        kernel.devices.shield(kernel.scope, inode)
        kernel.devices.shield(kernel.scope, inode)
        assert [kernel.devices.unshield(kernel.scope, inode) for _ in range(2)] == [True, False]

    def test_one_that_somebody_uses_is_not_removed(self, kernel: Groups) -> None:
        """A shield with a process in it stays, and the error says why."""
        inode = kernel.make(kernel.scope, NULL)
        kernel.devices.shield(kernel.scope, inode)
        shield = kernel.path(kernel.scope) / SHIELD
        with subprocess.Popen(["sleep", "60"]) as squatter:
            try:
                (shield / "cgroup.procs").write_text(str(squatter.pid))
                with pytest.raises(CgroupUnreadableError, match="cannot remove the shield: Device or resource busy"):
                    kernel.devices.unshield(kernel.scope, inode)
                assert kernel.devices.shielded(kernel.scope)
            finally:
                squatter.kill()

    def test_what_is_below_and_inside(self, kernel: Groups) -> None:
        """The shield is a group below like any other, and empty; a group with a process is told from one without."""
        inode = kernel.make(kernel.scope, NULL)
        assert kernel.devices.groups_below(kernel.scope) == frozenset()
        kernel.devices.shield(kernel.scope, inode)
        assert kernel.devices.groups_below(kernel.scope) == {SHIELD}
        assert not kernel.devices.populated(kernel.scope)
        with subprocess.Popen(["sleep", "60"]) as job:
            try:
                (kernel.path(kernel.scope) / "cgroup.procs").write_text(str(job.pid))
                assert kernel.devices.populated(kernel.scope)
                assert not kernel.devices.populated(f"{kernel.scope}/{SHIELD}")
            finally:
                job.kill()

    def test_not_for_a_namesake(self, kernel: Groups) -> None:
        """A group with another inode gets no shield."""
        inode = kernel.make(kernel.scope)
        with pytest.raises(GpuguardError):
            kernel.devices.shield(kernel.scope, inode + 1)
        assert not kernel.devices.shielded(kernel.scope)


def denied_all(kernel: Groups) -> bool:
    """Write systemd's deny-all; return whether the kernel took it."""
    with contextlib.suppress(OSError):
        kernel.deny(kernel.scope, "a")
        return True
    return False


def vanish_before(monkeypatch: pytest.MonkeyPatch, moment: str, group: Path) -> None:
    """Have the group removed just before the first system call of this name on it."""
    genuine = getattr(os, moment)

    def removed_first(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever the system call takes
        if moment != "open" or args[0] == "devices.list":
            monkeypatch.undo()
            group.rmdir()
        return genuine(*args, **options)

    monkeypatch.setattr(os, moment, removed_first)
