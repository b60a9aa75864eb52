"""What must not come of the runtimes' files: numbers that have moved, files that are unreadable later or read early."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuguard.errors import (
    GpuguardError,
    RuntimeFileError,
    RuntimeFileUnreadableError,
    RuntimeRunError,
    SpecError,
)
from gpuguard.guard import look, records
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import Rule
from gpuguard.model.runtime_record import Identity, RuntimeRecord
from gpuguard.model.state import State
from gpuguard.model.write import Watched
from tests.guard.conftest import Station
from tests.guard.post import Post
from tests.guard.test_records import GPU0, GPU1, has, hear, moved, record
from tests.lab.sim.node import SimNode

UVM = "c 511:1 rw"


def refusing(error: GpuguardError) -> Callable[[], RuntimeRecord]:
    """Return what answers with an error."""

    def refuse() -> RuntimeRecord:
        raise error

    return refuse


@pytest.mark.invariant(1)
async def test_numbers_that_have_moved_are_noticed_without_files(sim: SimNode, station: Station) -> None:
    """Also of a container of which no file tells: what the sentinel would give back is another driver's."""
    post = await station(sim)
    hear(post, RuntimeRecord)
    scope = sim.scope(hook_rules=[GPU0])
    await post.becomes(scope, State.PROTECTED)
    known = post.of(scope)
    assert known.entitled is not None
    known.known_since -= 3600.0
    known.consulted = time.monotonic()
    post.guard.keep(known, replace(known.entitled, drivers=frozenset({("c", 195, "nvidia")})))
    moved(post, ("c", 195, "other"), ("c", 300, "nvidia"))
    await post.becomes(scope, State.STALE)
    watched = post.guard.parts.sentinel._watched[scope.group]
    assert not watched.declared | watched.undeclared


@pytest.mark.invariant(1)
async def test_trust_does_not_come_with_unreadable_files(sim: SimNode, station: Station) -> None:
    """A container that may write its own list may so when its files cannot be read any more."""
    post = await station(sim)
    said = hear(post, lambda: record(trusted=False, identity=Identity("trainer")))
    scope = sim.scope()
    await post.until(lambda: said.asked and scope.group in post.guard.scopes, "nobody was asked")
    await post.assembly.watch.idle()
    said.answer = refusing(RuntimeFileError("/config.json: no answer in 5 s"))
    post.guard.parts.guarded.generation += 1
    await post.until(lambda: said.asked > 1, "nobody was asked again")
    await post.assembly.watch.idle()
    scope.write_rules([GPU1])
    await post.rounds(10)
    assert post.entitled(scope) == set()
    known = post.of(scope).record
    assert (known.identity.name, known.trouble) == ("trainer", "/config.json: no answer in 5 s")


@pytest.mark.invariant(1)
async def test_what_was_read_early_gives_nothing(sim: SimNode, station: Station) -> None:
    """While NVIDIA's hook is at work less may be known than after it: it is read again before it counts."""
    post = await station(sim)
    hear(post, lambda: record(asked=True))
    scope = sim.scope()
    await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
    await post.assembly.watch.idle()
    known = post.of(scope)
    known.record, known.early, known.consulted = record(GPU0, asked=True), True, time.monotonic() + 60.0
    await post.assembly.watch.looked(scope.group)
    assert (post.entitled(scope), has(scope, GPU0)) == (set(), False)


@pytest.mark.invariant(1)
async def test_a_stale_rule_is_never_owed(sim: SimNode, station: Station) -> None:
    """Not for the moment, either, in which it is learnt: the sentinel would give it back."""
    post = await station(sim)
    given: list[Watched] = []
    hear(post, lambda: record(GPU0, UVM, nodes={"/dev/nvidia-uvm-tools": DeviceNumber("c", 511, 1)}))
    moved(post, ("c", 195, "nvidia"), ("c", 511, "nvidia-uvm"))
    guarded = post.guard.parts.guarded
    guarded._nodes = {"/dev/nvidia-uvm-tools": DeviceNumber("c", 510, 1)}
    guarded._guarded = replace(guarded._guarded, majors=guarded._guarded.majors | {("c", 511)})
    post.guard.parts.sentinel.watch = given.append  # type: ignore[method-assign, assignment]
    scope = sim.scope(hook_rules=[GPU0])
    await post.becomes(scope, State.STALE)
    assert given
    assert not any(Rule.parse(UVM) in watched.undeclared | watched.declared for watched in given)
    assert not has(scope, UVM)


@pytest.mark.invariant(10)
async def test_files_that_nobody_believes_are_not_told_for_each_container(sim: SimNode, station: Station) -> None:
    """A node on which it is so for all of them, and which starts many, does not fill its journal with it."""
    post = await station(sim)
    names = itertools.count()

    def refuse() -> RuntimeRecord:
        raise RuntimeFileError(f"/run/x/{next(names):064x}/config.json: not believed")

    said = hear(post, refuse)
    scopes = [sim.scope() for _ in range(12)]
    await post.until(lambda: all(scope.group in post.guard.scopes for scope in scopes), "not all were seen")
    await post.assembly.watch.idle()
    for known in [post.of(scope) for scope in scopes]:
        known.known_since -= 3600.0
        known.consulted = known.known_since
        await records.consult(post.guard.parts, post.guard.policy, known)
    assert said.asked > 12
    assert len(post.events("trouble")) < 4


@pytest.mark.invariant(1)
async def test_one_that_has_left_is_not_trusted(sim: SimNode, station: Station) -> None:
    """A container that moves its first process makes its files say nothing: it could write its own list as well."""
    post = await station(sim)
    hear(post, refusing(RuntimeRunError("/state.json: not believed: process 7, which it names, is not in it")))
    scope = sim.scope(hook_rules=[GPU1])
    await post.becomes(scope, State.PROTECTED)
    assert (post.entitled(scope), post.kinds()) == (set(), ["excess"])


@pytest.mark.invariant(1)
@pytest.mark.parametrize(
    "error",
    [
        SpecError("/c: process.env: want a list"),
        RuntimeFileError("/c: not read: it has more than 4194304 bytes"),
        RuntimeFileError("the runtime's files: no answer in 5 s"),
    ],
)
async def test_unreadable_by_its_users_doing_is_not_trusted(
    sim: SimNode, station: Station, error: GpuguardError
) -> None:
    """What is in its list it may have written itself."""
    post = await station(sim)
    hear(post, refusing(error))
    scope = sim.scope(hook_rules=[GPU1])
    await post.until(lambda: scope.group in post.guard.scopes, "not seen")
    await post.rounds(20)
    assert post.entitled(scope) == set()


async def test_unreadable_for_reasons_outside_is_as_without_files(sim: SimNode, station: Station) -> None:
    """No container can have seen to that, and on some nodes it is so for all of them."""
    post = await station(sim)
    hear(post, refusing(RuntimeFileUnreadableError("/c: not believed: others than root may write it")))
    scope = sim.scope(hook_rules=[GPU1])
    await post.becomes(scope, State.PROTECTED)
    assert post.entitled(scope) == {GPU1}


async def test_unreadable_files_take_nothing_from_what_is_known(sim: SimNode, station: Station) -> None:
    """What was learnt before, as while it started, is given back still."""
    post = await station(sim)
    post.guard.parts.start_phase.starting = lambda *_: True  # type: ignore[method-assign]
    hear(post, refusing(RuntimeFileError("/c: not read: it has more than 4194304 bytes")))
    scope = sim.scope(hook_rules=[GPU1])
    await post.until(lambda: scope.group in post.guard.scopes and post.entitled(scope) == {GPU1}, "not learnt")
    post.guard.parts.start_phase.starting = lambda *_: False  # type: ignore[method-assign]
    await post.becomes(scope, State.PROTECTED)
    scope.write_rules([GPU1], "deny")
    await post.until(lambda: has(scope, GPU1), "not given back")
    assert post.entitled(scope) == {GPU1}


@pytest.mark.invariant(1)
async def test_before_its_files_are_there_nobody_is_believed(sim: SimNode, station: Station) -> None:
    """What is seen when a container has begun its program is learnt after its files were read, not before."""
    post = await station(sim)
    phase: dict[str, bool] = {"starting": True}
    post.guard.parts.start_phase.starting = lambda *_: phase["starting"]  # type: ignore[method-assign]
    said = hear(post, lambda: RuntimeRecord() if phase["starting"] else record(trusted=False))
    scope = sim.scope()
    await post.until(lambda: said.asked and scope.group in post.guard.scopes, "nobody was asked")
    await post.assembly.watch.idle()
    known = post.of(scope)
    phase["starting"] = False
    assert not known.learnable(Rule.parse(GPU1), starting=False)
    scope.write_rules([GPU1])
    await post.rounds(10)
    assert (post.entitled(scope), known.record.trusted, known.premature) == (set(), False, False)


async def test_without_any_files_it_is_believed_when_it_has_begun(sim: SimNode, station: Station) -> None:
    """There are runtimes of which no files are known: as before, what is in force was given."""
    post = await station(sim)
    phase: dict[str, bool] = {"starting": True}
    post.guard.parts.start_phase.starting = lambda *_: phase["starting"]  # type: ignore[method-assign]
    hear(post, RuntimeRecord)
    scope = sim.scope()
    await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
    await post.assembly.watch.idle()
    post.of(scope).known_since -= 3600.0  # however long it took
    phase["starting"] = False
    scope.write_rules([GPU1])
    await post.becomes(scope, State.PROTECTED)
    assert post.entitled(scope) == {GPU1}


@pytest.mark.invariant(1)
async def test_a_ledger_that_does_not_know_whose_the_numbers_were(sim: SimNode, station: Station) -> None:
    """An older gpuguard wrote it, and the driver was loaded again before this one came: nobody is given that number."""
    before = await station(sim)
    hear(before, RuntimeRecord)
    scope = sim.scope(hook_rules=[GPU0])
    await before.becomes(scope, State.PROTECTED)
    known = before.of(scope).entitled
    assert known is not None
    await before.stop()
    old = replace(known, rules=known.rules | {Rule.parse(UVM)}, drivers=frozenset())
    before.guard.parts.ledger.save(old)
    post = Post(sim)
    post.build()
    hear(post, RuntimeRecord)
    moved(post, ("c", 195, "nvidia"), ("c", 511, "vfio"))
    for _ in range(3):
        await post.assembly.watch.looked(scope.group)
    assert post.state(scope) is State.STALE
    assert not has(scope, UVM)
    entitled = post.of(scope).entitled
    assert entitled is not None
    assert not [name for _, major, name in entitled.drivers if major == 511]
    await post.stop()


@pytest.mark.invariant(1)
async def test_before_it_has_a_process_it_has_not_begun(sim: SimNode, station: Station) -> None:
    """Runtimes put the first process into a control group that is there already."""
    post = await station(sim)
    phase: dict[str, bool] = {"empty": True}
    post.guard.parts.devices.populated = lambda _: not phase["empty"]  # type: ignore[method-assign, assignment]
    hear(post, lambda: RuntimeRecord() if phase["empty"] else record(trusted=False))
    scope = sim.scope()
    await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
    await post.assembly.watch.idle()
    known = post.of(scope)
    phase["empty"] = False
    assert known.vacant
    scope.write_rules([GPU1])
    await post.rounds(10)
    assert (post.entitled(scope), known.record.trusted, known.vacant) == (set(), False, False)


@pytest.mark.invariant(1)
@pytest.mark.parametrize("trusted", [True, False])
async def test_what_is_no_gpu_is_not_made_to_last(sim: SimNode, station: Station, trusted: bool) -> None:
    """A disk that a container has allowed itself is not declared along with its GPU; what a hook gave one is."""
    post = await station(sim)
    hear(post, lambda: record(GPU0, trusted=trusted))
    scope = sim.scope(hook_rules=[GPU0, "b 77:7 rw"])
    await post.becomes(scope, State.PROTECTED)
    assert ("/dev/block/77:7" in scope.drop_in.read_text()) is trusted
    assert has(scope, "b 77:7 rw")


@pytest.mark.invariant(10)
async def test_a_start_is_not_told_as_trouble(sim: SimNode, station: Station) -> None:
    """What may come yet is not in doubt."""
    post = await station(sim)
    said = hear(post, lambda: record(asked=True, doubts=("its mounts prove nothing",), age=-60.0))
    scope = sim.scope()
    await post.until(lambda: said.asked, "nobody was asked")
    await post.rounds(5)
    assert (post.kinds(), post.state(scope)) == ([], None)


@pytest.mark.invariant(10)
async def test_what_is_in_force_before_the_files_are_there_is_no_excess(sim: SimNode, station: Station) -> None:
    """They are read before the next look, which tells."""
    post = await station(sim)
    hear(post, lambda: record(trusted=False))
    scope = sim.scope(hook_rules=[GPU1])
    await post.becomes(scope, State.PROTECTED)
    known = post.of(scope)
    known.record, known.premature = RuntimeRecord(), True
    assert post.guard._learn(known, look.at(post.guard.parts, known)) is None
    assert known.verdict is None


@pytest.mark.invariant(1)
async def test_a_new_one_is_read_at_each_look(sim: SimNode, station: Station) -> None:
    """A runtime's process of another kind may have been seen in it, when its files were not there yet."""
    post = await station(sim)
    said = hear(post, RuntimeRecord)
    scope = sim.scope()
    await post.until(lambda: said.asked and scope.group in post.guard.scopes, "nobody was asked")
    await post.assembly.watch.idle()
    post.of(scope).known_since += 1000.0  # it stays new, however long it takes
    assert records.unread(post.of(scope))
    said.answer = lambda: record(trusted=False)
    scope.write_rules([GPU1])
    await post.rounds(5)
    assert (post.entitled(scope), post.of(scope).record.trusted) == (set(), False)
    assert not records.unread(post.of(scope))


@pytest.mark.invariant(1)
async def test_files_that_come_while_it_is_looked_at(sim: SimNode, station: Station) -> None:
    """Whether a container is to be believed is read after its list: it may have begun in between."""
    post = await station(sim)
    answers = [RuntimeRecord()]
    hear(post, lambda: answers.pop() if answers else record(trusted=False))
    scope = sim.scope(hook_rules=[GPU1])
    await post.until(lambda: scope.group in post.guard.scopes and not answers, "the scope was not seen")
    await post.rounds(5)
    assert post.entitled(scope) == set()
