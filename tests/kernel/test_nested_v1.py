"""Control groups below a scope on the kernel's v1 hierarchy: found, read, written, and which one is the container's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, DeniedError
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.kernel.nested_v1 import MOST_GROUPS, MOST_LEVELS, Walk, names, opened
from gpuguard.model.device_list import Payload
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.kernel.groups import Groups

GPU0, GPU1, NULL = "c 195:0 rw", "c 195:1 rw", "c 1:3 rwm"
RULE = Rule.parse(GPU0)


@contextmanager
def living(groups: Groups, control_group: str) -> Iterator[None]:
    """Have a process in a group."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            (groups.path(control_group) / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
            yield
        finally:
            process.kill()


@pytest.fixture
def scope(kernel: Groups) -> Groups:
    """Return the hierarchy with a scope that has both GPUs."""
    kernel.make(kernel.scope, NULL, GPU0, GPU1)
    return kernel


def below(groups: Groups, path: str, *denied: str) -> str:
    """Make a group below the scope, which has what the kernel copies but for this."""
    control_group = f"{groups.scope}/{path}"
    groups.path(control_group).mkdir()
    for rule in denied:
        groups.deny(control_group, rule)
    return control_group


class TestGroups:
    """Listing what is below."""

    def test_each_with_its_list_after_the_one_that_it_is_below(self, scope: Groups) -> None:
        """By path, inode and rules; the shield is none of the container's."""
        for path in ("docker", "docker/a", "docker/a/b", "init"):
            below(scope, path)
        scope.deny(f"{scope.scope}/docker/a", GPU0)
        scope.devices.shield(scope.scope, scope.inode(scope.scope))
        found, cut = scope.devices.groups(scope.scope)
        assert not cut
        assert [(group.path, group.rules) for group in found] == [
            ("docker", RuleSet.of(NULL, GPU0, GPU1)),
            ("docker/a", RuleSet.of(NULL, GPU1)),
            ("docker/a/b", RuleSet.of(NULL, GPU1)),
            ("init", RuleSet.of(NULL, GPU0, GPU1)),
        ]
        assert [group.inode for group in found] == [scope.inode(f"{scope.scope}/{group.path}") for group in found]

    @pytest.mark.invariant(10)
    def test_no_more_than_some_and_no_deeper_than_some_levels(self, scope: Groups) -> None:
        """What is beyond is not read, and that is said."""
        path = "deep"
        for _ in range(MOST_LEVELS - 1):
            below(scope, path)
            path += "/x"
        below(scope, path)
        assert scope.devices.groups(scope.scope)[1] is False
        below(scope, f"{path}/x")
        found, cut = scope.devices.groups(scope.scope)
        assert (len(found), cut) == (MOST_LEVELS, True)
        for number in range(MOST_GROUPS):
            below(scope, f"n{number}")
        found, cut = scope.devices.groups(scope.scope)
        assert (len(found), cut) == (MOST_GROUPS, True)

    def test_what_ends_meanwhile_is_left_out(self, scope: Groups) -> None:
        """The others are told of."""
        for path in ("a", "b", "c"):
            below(scope, path)
        directory = os.open(scope.path(scope.scope), os.O_RDONLY)
        try:
            walk = Walk(directory)
            found = []
            for path, _ in walk.groups():
                found.append(path)
                if path == "a":
                    scope.path(f"{scope.scope}/b").rmdir()
            assert found == ["a", "c"]
            assert len(names(directory, 1)) == 1
        finally:
            os.close(directory)

    def test_one_is_left_out_at_the_top_alone(self, scope: Groups) -> None:
        """A container may give a group further down the name of gpuguard's own."""
        for path in (SHIELD, "a", f"a/{SHIELD}"):
            below(scope, path)
        assert [group.path for group in scope.devices.groups(scope.scope)[0]] == ["a", f"a/{SHIELD}"]

    def test_a_scope_that_is_gone(self, kernel: Groups) -> None:
        """It is said, not that there are none."""
        with pytest.raises(CgroupGoneError):
            kernel.devices.groups(kernel.scope)


class TestAllowBelow:
    """Writing there."""

    def test_one_rule_into_one_group(self, scope: Groups) -> None:
        """The group of that inode alone gets it."""
        group, sister = below(scope, "a", GPU0), below(scope, "b", GPU0)
        scope.devices.allow_below(scope.scope, scope.inode(scope.scope), ("a", scope.inode(group)), RULE)
        assert (GPU0 in scope.lines(group), GPU0 in scope.lines(sister)) == (True, False)

    @pytest.mark.invariant(5)
    @pytest.mark.parametrize("wrong", ["scope", "group"])
    def test_not_into_another_one_of_that_name(self, scope: Groups, wrong: str) -> None:
        """Neither below another scope nor in another group."""
        group = below(scope, "a", GPU0)
        inodes = [scope.inode(scope.scope) + (wrong == "scope"), scope.inode(group) + (wrong == "group")]
        with pytest.raises(CgroupGoneError):
            scope.devices.allow_below(scope.scope, inodes[0], ("a", inodes[1]), RULE)
        assert GPU0 not in scope.lines(group)

    @pytest.mark.invariant(6)
    def test_what_a_group_above_denies(self, scope: Groups) -> None:
        """The one that denies is named, and nothing is forced."""
        upper = below(scope, "a", GPU0)
        lower = below(scope, "a/b")
        with pytest.raises(DeniedError, match=f"its ancestor {upper} denies it"):
            scope.devices.allow_below(scope.scope, scope.inode(scope.scope), ("a/b", scope.inode(lower)), RULE)

    @pytest.mark.invariant(6)
    @pytest.mark.parametrize("path", ["..", "../x", "a/..", "a//b", "", "/", "a/", "."])
    def test_a_path_leads_nowhere_else(self, scope: Groups, path: str) -> None:
        """Names alone lead down; nothing leads up."""
        below(scope, "a")
        directory = os.open(scope.path(scope.scope), os.O_RDONLY)
        try:
            with pytest.raises(FileNotFoundError), opened(directory, path):
                pass
        finally:
            os.close(directory)
        with pytest.raises(CgroupGoneError):
            scope.devices.allow_below(scope.scope, scope.inode(scope.scope), (path, scope.inode(scope.slice)), RULE)

    def test_links_are_not_followed(self, tree: Groups) -> None:
        """On cgroupfs there are none; where there is one it is no group."""
        (tree.path(tree.scope) / "link").symlink_to(tree.path(tree.slice))
        with pytest.raises((CgroupGoneError, CgroupUnreadableError)):
            tree.devices.allow_below(tree.scope, tree.inode(tree.scope), ("link", tree.inode(tree.slice)), RULE)
        assert tree.devices.groups(tree.scope) == ([], False)


class TestPayload:
    """The group that crun puts a container into."""

    def test_its_list_is_the_containers(self, kernel: Groups) -> None:
        """Below a scope without a filter, whatever its name; the shield does not count."""
        kernel.path(kernel.scope).mkdir()
        kernel.path(f"{kernel.scope}/sub").mkdir()
        payload = Payload(f"{kernel.scope}/sub", kernel.make(f"{kernel.scope}/sub", NULL, GPU0))
        assert kernel.devices.read(kernel.scope).payload is None
        with living(kernel, payload.control_group):
            seen = kernel.devices.read(kernel.scope)
            assert (seen.inode, seen.rules) == (kernel.inode(kernel.scope), RuleSet.of(NULL, GPU0))
            assert (seen.payload, seen.nested) == (payload, False)
            kernel.devices.shield(kernel.scope, seen.inode)
            assert kernel.devices.read(kernel.scope) == seen
            below(kernel, "sub/inner")
            assert kernel.devices.read(kernel.scope).nested
            below(kernel, "sister")
            assert kernel.devices.read(kernel.scope).payload is None
        assert (kernel.path(kernel.scope) / SHIELD).is_dir()

    def test_not_where_the_scope_has_processes(self, kernel: Groups) -> None:
        """Then the container is there."""
        kernel.path(kernel.scope).mkdir()
        kernel.make(below(kernel, "container"), GPU0)
        with living(kernel, f"{kernel.scope}/container"), living(kernel, kernel.scope):
            seen = kernel.devices.read(kernel.scope)
            assert (seen.payload, seen.rules, seen.nested) == (None, RuleSet(unrestricted=True), True)

    @pytest.mark.parametrize(("name", "found"), [("container", True), ("step_0", False), ("init.scope", False)])
    def test_below_a_scope_with_a_filter_by_its_name_alone(self, scope: Groups, name: str, found: bool) -> None:
        """Another one may be a job's step, or of a systemd inside."""
        with living(scope, below(scope, name, GPU0)):
            seen = scope.devices.read(scope.scope)
        assert (seen.payload is not None) == found
        assert seen.rules == (RuleSet.of(NULL, GPU1) if found else RuleSet.of(NULL, GPU0, GPU1))

    def test_a_rule_goes_into_the_scope_first(self, scope: Groups) -> None:
        """Where that lacks it; then into the container's group."""
        with living(scope, payload := below(scope, "container")):
            scope.deny(scope.scope, GPU0)
            assert [GPU0 in scope.lines(group) for group in (scope.scope, payload)] == [False, False]
            scope.devices.allow(scope.scope, scope.inode(scope.scope), RULE)
            assert [GPU0 in scope.lines(group) for group in (scope.scope, payload)] == [True, True]
            scope.deny(payload, GPU0)
            scope.devices.allow(scope.scope, scope.inode(scope.scope), RULE)
            assert GPU0 in scope.lines(payload)

    def test_what_a_scope_without_a_filter_denies_and_does_not_show(self, kernel: Groups) -> None:
        """It is taken back there, and the scope stays without a filter."""
        kernel.path(kernel.scope).mkdir()
        kernel.make(payload := below(kernel, "container"), NULL, GPU0)
        with living(kernel, payload):
            kernel.deny(kernel.scope, GPU0)
            assert kernel.lines(payload) == [NULL]
            kernel.devices.allow(kernel.scope, kernel.inode(kernel.scope), RULE)
            assert sorted(kernel.lines(payload)) == sorted([NULL, GPU0])
            assert kernel.lines(kernel.scope) == ["a *:* rwm"]

    @pytest.mark.invariant(6)
    def test_what_the_slice_denies(self, scope: Groups) -> None:
        """Nothing is forced; the slice is not written."""
        with living(scope, payload := below(scope, "container")):
            scope.deny(scope.slice, GPU0)
            with pytest.raises(DeniedError):
                scope.devices.allow(scope.scope, scope.inode(scope.scope), RULE)
            assert GPU0 not in scope.lines(scope.scope) + scope.lines(payload)
