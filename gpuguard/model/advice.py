"""What to do about a container: a line or two for a reader at three in the morning. Pure.

Commands that are named here are for root on the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from gpuguard.model.container_name import short_id
from gpuguard.model.device_filter import Owner
from gpuguard.model.explanation import Comparison, Declaration, Denier, Explanation
from gpuguard.model.pathname import within
from gpuguard.model.refusal import Refusal
from gpuguard.model.reload import returning
from gpuguard.model.rule import BLOCK, CHAR, Rule
from gpuguard.model.state import State
from gpuguard.model.verdict import IN_ANOTHER_GROUP

# Where tools/install puts them.
_DOCS = "/usr/share/doc/gpuguard/docs"
_NO_RELOAD = "Until then no daemon-reload, set-property or package update on this node."
_IN_THE_UNIT = {Refusal.NOT_TRANSIENT.value, Refusal.RESTARTABLE.value}
_SHIELDED = "Until then the shield keeps the devices; it goes when the daemon is stopped."
_KEEP = "Until then keep the daemon running: it writes the devices back after each rewrite."
_ENFORCE = (
    'The daemon only observes: set [guard] mode = "enforce" (and no --observe-only), then `systemctl reload gpuguard`.'
)
_START = "`systemctl start gpuguard`: it is stopped, and nobody gives back what gets lost."
_ASK = "Whether the daemon works cannot be told: `systemctl status gpuguard`."


def advice(explanation: Explanation) -> tuple[str, ...]:
    """Return what to do, in order."""
    return tuple(dict.fromkeys(line for line in (*_about(explanation), *_about_the_guard(explanation)) if line))


def short_name(cid: str) -> str:
    """Return what commands take for a container: 12 digits of a generated id, or all of one that somebody chose."""
    return quote(short_id(cid))


def _about(explanation: Explanation) -> Iterator[str]:
    name, state = short_name(explanation.container.id), explanation.container.state
    if state is State.UNRESTRICTED:
        yield "Nothing: without a device filter (privileged) there is nothing that a reload could take."
    elif state is State.OPAQUE:
        yield from _opaque(explanation)
    elif state is State.SETTLING:
        yield f"Wait some seconds, then `gpuguard explain {name}` again."
    elif state is State.STALE:
        yield "Restart the container: the numbers of its devices have changed."
    elif state in {State.LOST, State.PARTIAL}:
        yield from _lost(explanation)
    elif state is State.AT_RISK:
        yield from _at_risk(explanation)
    elif not returning(explanation):
        yield "Nothing."
    if returning(explanation):
        yield f'Have systemd forget what was taken away on purpose: {_DOCS}/how-it-works.md, "Who did it", says how.'
    if state in {State.PROTECTED, State.AT_RISK} and explanation.container.excess and not explanation.plan.narrowed:
        excess = ", ".join(map(str, explanation.container.excess))
        yield f"Find out who let it use {excess}, if you did not: gpuguard neither guards that nor takes it away."


def _about_the_guard(explanation: Explanation) -> Iterator[str]:
    daemon = explanation.node.daemon
    if explanation.container.state is State.UNRESTRICTED:
        return
    if daemon == "stopped":
        yield _START
    elif daemon != "running":
        yield _ASK
    elif explanation.node.mode == "observe":
        yield _ENFORCE


def _opaque(explanation: Explanation) -> Iterator[str]:
    name, reason = short_name(explanation.container.id), explanation.container.reason or ""
    if "CAP_SYSLOG" in reason:
        yield "`sysctl kernel.kptr_restrict=1`, and let gpuguard keep CAP_SYSLOG: the kernel hides the instructions."
    elif "CAP_SYS_ADMIN" in reason:
        yield f"Ask with CAP_SYS_ADMIN: as root on the host, not in a container: `sudo gpuguard explain {name}`."
        yield "If that works, the daemon's unit lacks it: `systemctl show -p CapabilityBoundingSet gpuguard`."
    elif "Permission denied" in reason or "not permitted" in reason:
        yield f"Ask as root: `sudo gpuguard explain {name}`."
    elif "cannot be followed" in reason:
        yield f"See whose program that is: `bpftool cgroup tree {explanation.root}`."
        yield "Open the device in the container to see how it is: gpuguard cannot tell, and does nothing there."
    elif reason.startswith(IN_ANOTHER_GROUP):
        yield f"See that group's devices.list, below {explanation.root}: `a *:* rwm`, as of a slice, allows every GPU."
        yield f"To put it right, restart it while another container runs in its slice: {_DOCS}/containers.md says why."
    elif reason and reason in "; ".join(explanation.doubts):
        yield "If it lacks its GPUs, restart it: gpuguard gives nothing on suspicion."
    else:
        yield f"Look at what the reason names, below {explanation.root}."


def _lost(explanation: Explanation) -> Iterator[str]:
    name = short_name(explanation.container.id)
    lost = [entry for entry in explanation.comparisons if entry.entitled and entry.effective is False]
    blockers: dict[Denier, list[Rule]] = {}
    for entry in lost:
        for denier in entry.denied_by:
            if not denier.curable:
                blockers.setdefault(denier, []).append(entry.rule)
    for denier, rules in blockers.items():
        yield from _blocked(explanation, denier, rules)
    if blockers:
        yield f"Then `gpuguard repair {name}`."
    elif explanation.node.cgroup == "v2" and (explanation.refusal or explanation.plan.hindrance):
        if explanation.plan.declare:
            yield f"`gpuguard repair {name}` gives back what systemd has words for."
        if explanation.refusal not in _IN_THE_UNIT:
            yield "Restart the container for the rest: only a declaration gives it back, which is not possible here."
        yield from _why_undeclared(explanation)
    elif explanation.node.daemon == "running" and explanation.node.mode == "observe":
        pass  # it refuses to repair: told below
    else:
        yield f"`gpuguard repair {name}` gives it back now; if it cannot, it says why: then restart the container."


def _blocked(explanation: Explanation, denier: Denier, rules: list[Rule]) -> Iterator[str]:
    group, own = denier.control_group, explanation.container.cgroup
    directory, unit = quote(f"{explanation.root}{group}"), quote(group.rpartition("/")[2])
    entries = " ".join(f"'{entry}'" for entry in _entries(rules))
    if denier.program is None:
        yield from (f"Allow it above first: `echo '{rule}' > {directory}/devices.allow`." for rule in rules)
    elif within(group, own):
        yield f"Restart the container with the device: its own program {denier.program} denies it."
    elif denier.owner is Owner.SYSTEMD and entries:
        yield f"Allow it above, until the next boot: `systemctl set-property --runtime {unit} {entries}`."
        yield f"For good: `systemctl cat {unit}` shows what restricts it."
    else:
        yield f"Find out who put it there: `bpftool prog show id {denier.program}`, `bpftool cgroup show {directory}`."
        yield f"Have its owner remove it from {group}, or start the container elsewhere: gpuguard detaches nothing."


def _entries(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield lines of a unit file for the rules that have a spelling (systemd 240 and later)."""
    for rule in rules:
        word = {CHAR: "char", BLOCK: "block"}[rule.kind]
        if rule.minor is None:
            yield f"DeviceAllow={word}-{'*' if rule.major is None else rule.major} {rule.access.letters()}"
        elif rule.major is not None:
            yield f"DeviceAllow=/dev/{word}/{rule.major}:{rule.minor} {rule.access.letters()}"


def _at_risk(explanation: Explanation) -> Iterator[str]:
    name = short_name(explanation.container.id)
    if explanation.declaration is None:
        why = explanation.trouble or "systemd does not tell"
        yield f"`systemctl status {quote(explanation.container.scope)}`: {why}."
        if explanation.node.systemd is None:
            yield "See whether systemd answers: `busctl status`, `systemctl status dbus`."
    elif explanation.refusal or explanation.plan.hindrance:
        yield from _why_undeclared(explanation)
    elif explanation.declaration.differs and _all_in_memory(explanation):
        yield from _overruled(explanation.declaration, name)
        yield _SHIELDED if explanation.shield else _NO_RELOAD
    elif explanation.guards and not explanation.declares:
        yield "Set [guard] declare = true, then `systemctl reload gpuguard`: it would be declared now."
    elif explanation.node.daemon == "running" and explanation.node.mode == "observe":
        yield _NO_RELOAD
    else:
        yield f"`gpuguard repair {name}` has systemd remember it; no open fails meanwhile."


def _overruled(declaration: Declaration, name: str) -> Iterator[str]:
    if declaration.foreign:
        yield f"Mend or remove what overrules systemd's memory at a reload: {', '.join(declaration.foreign)}."
        yield f"Then `gpuguard repair {name}`."
    else:
        yield f"`gpuguard repair {name}` has systemd write its list to disk again."


def _all_in_memory(explanation: Explanation) -> bool:
    return all(entry.memory for entry in explanation.comparisons if entry.entitled)


def _why_undeclared(explanation: Explanation) -> Iterator[str]:
    plan = explanation.plan
    scope, refusal = quote(explanation.container.scope), explanation.refusal
    if refusal == Refusal.GATED.value:
        yield f"Let its BPFProgram=device: allow the devices (`systemctl cat {scope}`), and DevicePolicy=auto with it."
    elif refusal == Refusal.UNFILTERED.value:
        yield "Nothing can be declared: systemd filters nothing there, and its next rewrite lets everything through."
    elif refusal == Refusal.UNMANAGED.value:
        yield "Nothing can be declared: the cgroupfs driver makes control groups that systemd does not know."
    elif refusal in _IN_THE_UNIT:
        owed = [entry.rule for entry in explanation.comparisons if entry.entitled and not entry.declared]
        lines = " ".join(_entries(owed)) or "DeviceAllow= for its devices"
        if refusal == Refusal.RESTARTABLE.value:
            yield f"Start it with this property of its own, as by `systemd-run --property=`: {lines}."
        else:
            yield f"Say it in the unit itself: `systemctl edit {scope}`, there [Service] {lines}."
            yield "That reloads systemd, which takes away what is at risk on this node: see `gpuguard status` first."
    elif refusal:
        yield f"`systemctl status {scope}`: the container's control group is not that of a unit that systemd knows."
    elif plan.unclear:
        yield from _unclear(explanation)
    elif plan.narrowed:
        yield from _narrowed(explanation)
    else:
        yield f"Start the container with a device number in place of `*` for {', '.join(map(str, plan.undeclarable))}."
    if explanation.container.state is State.AT_RISK:
        yield from _meanwhile(explanation)


def _meanwhile(explanation: Explanation) -> Iterator[str]:
    if explanation.shield:
        yield _SHIELDED
    else:
        yield _KEEP if explanation.guards and explanation.node.cgroup == "v1" else _NO_RELOAD


def _unclear(explanation: Explanation) -> Iterator[str]:
    unclear = [entry for entry in explanation.filters or () if not entry.exact]
    programs = ", ".join(str(entry) for entry in unclear)
    yield f"Restart the container without rules that deny a part of what others allow: {programs} has such."


def _narrowed(explanation: Explanation) -> Iterator[str]:
    released = [entry for entry in explanation.comparisons if entry.hinders and entry.released]
    added = [entry for entry in explanation.comparisons if entry.hinders and not entry.released]
    excess = [entry for entry in added if entry.guarded and not entry.entitled]
    unspelt = [entry for entry in added if entry not in excess]
    if released:
        yield f"Take away what was released, by a restart of the container without it: {_rules(released)}."
    if excess:
        yield f"Restart the container: {_rules(excess)} came to it after its start, and declaring would take that away."
    if unspelt:
        yield f"Restart the container without {_rules(unspelt)} (--device-cgroup-rule): systemd has no words for that."


def _rules(comparisons: list[Comparison]) -> str:
    return ", ".join(str(entry.rule) for entry in comparisons)
