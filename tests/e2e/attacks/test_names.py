"""Names, labels, annotations and ids that a user chooses: they are told as what they are, and open nothing."""

from __future__ import annotations

import json
import secrets
import shutil

import pytest

from gpuguard.report.clean import LIMIT
from tests.e2e.attacks import specs
from tests.e2e.attacks.arena import ROOT, Arena
from tests.lab.devices import GPU0
from tests.lab.scope import random_name

pytestmark = [pytest.mark.invariant(1), pytest.mark.invariant(10)]

HOSTILE = (
    'x"} 1\ngpuguard_build_info{version="stolen"} 1\n#',
    "a\nb\rc\td\x00e\x1b[2J\x1b]0;title\x07\x9b31m",
    "\u202etxt.exe\u2066\ufeff\u2028\u0085\ud7ff\U0010ffff",
    "../../../../etc/shadow",
    "/dev/nvidia1",
    '%s%n{0}{config}$(reboot)`reboot`\\"\\n\\x',
    "n" * 4096,
    "\U0001f4a9" * 1500,
    "",
)


def notes(text: str) -> dict[str, str]:
    """Return a text in every place where a runtime's specification may have a name."""
    kinds = ("container-name", "sandbox-name", "sandbox-namespace", "sandbox-uid", "image-name")
    keys = [f"io.kubernetes.cri.{kind}" for kind in kinds]
    keys += ["nerdctl/name", "nerdctl/namespace", "io.kubernetes.pod.name", "cdi.k8s.io/gpu", text or "empty"]
    return dict.fromkeys(keys, text)


def assert_told_plainly(arena: Arena, scopes: list[str]) -> None:
    """Assert that metrics, log and commands can be read as ever, and that nobody has taken part in writing them."""
    guard = arena.guard
    rows = guard.samples("gpuguard_container_info")  # the parser refuses what is no exposition
    assert len(rows) == 1 + len(scopes)
    for labels in rows:
        for _, value in labels:
            assert len(value) <= LIMIT
            assert value.isprintable()
    assert len(guard.samples("gpuguard_build_info")) == 1
    assert guard.total("gpuguard_build_info", version="stolen") == 0
    for line in guard.daemon.output().splitlines():
        if line.startswith("{"):
            json.loads(line)
    status = guard.run("status").stdout
    assert len(status.splitlines()) <= len(scopes) + 6
    texts = [status, *(guard.run("explain", scope).stdout for scope in scopes), guard.run("doctor").stdout]
    for text in texts:
        odd = {letter for letter in text if not letter.isprintable() and letter != "\n"}
        assert odd == set(), odd
    json.loads(guard.run("explain", scopes[0], "--json").stdout)
    assert set(scopes) <= set(guard.status())


def test_names_in_annotations(arena: Arena) -> None:
    """Kubernetes' and nerdctl's annotations with line breaks, escapes, quotes, paths, four kilobytes, and unicode."""
    suspects, directories = [], []
    for text in HOSTILE:
        scope = random_name(specs.PREFIX)
        specification = specs.of(scope, [GPU0])
        specification.update(annotations=notes(text), hostname=text)
        directories.append(specs.prepare(arena, scope, specification))  # what comes after the start is not believed
        suspects.append(arena.scope((GPU0,), scope, wait=False))
        specs.note(directories[-1], suspects[-1])
    arena.withstand(*suspects, heals=False)
    assert_told_plainly(arena, [suspect.scope for suspect in suspects])
    for directory in directories:
        shutil.rmtree(directory)


def test_labels_and_variables_of_an_engine(arena: Arena) -> None:
    """A container's labels, host name, variables and arguments, as an engine's user chooses them."""
    longest = "l" * 4096
    texts = [text.replace("\x00", "") for text in HOSTILE if text] + [longest]
    labels = [f"--label=io.kubernetes.{kind}={text}" for text in texts for kind in ("pod.name", "container.name")]
    variables = [f"--env=NVIDIA_VISIBLE_DEVICES={text}" for text in texts]
    odd = [f"--env={secrets.token_hex(4)}\n{texts[0]}=1", f"--hostname={'h' * 60}"]
    suspect = arena.enter((*ROOT, *labels, *variables, *odd))
    arena.withstand(suspect)
    assert_told_plainly(arena, [suspect.scope])
