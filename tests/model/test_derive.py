"""What a container was given, from its specification and an honoured request."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.derive import Requested, derive, may_write
from gpuguard.model.grant import Grant, Source
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.oci_spec import OciSpec
from gpuguard.model.rule import Rule
from gpuguard.model.runtime_record import Bundle, Identity, RuntimeRecord
from tests.model.looks import GUARDED_RULES, guarded, rules
from tests.model.strategies import CLOSE_RULES

WHERE = "/run/bundle/config.json"
WHO = Identity("trainer")


def made(spec: OciSpec, requested: Optional[Requested] = None) -> RuntimeRecord:
    """Derive from a specification."""
    return derive("docker", WHO, Bundle(WHERE, spec, 1.0), guarded, requested)


def test_without_a_bundle_nothing_is_known() -> None:
    """Who it is may be known all the same."""
    assert derive("docker", WHO, None, guarded) == RuntimeRecord("docker", WHO)


def test_the_guarded_rules_of_the_specification() -> None:
    """They are granted exactly as they are, and name the file; the nodes are kept."""
    spec = OciSpec(allowed=rules("c 1:0 rwm", "c 1:1 r", "c 5:0 rw"), nodes={"/dev/x0": DeviceNumber("c", 1, 0)})
    why = f"linux.resources.devices in {WHERE}"
    assert made(spec).grants == (
        Grant(Rule.parse("c 1:0 rwm"), Source.SPEC, why),
        Grant(Rule.parse("c 1:1 r"), Source.SPEC, why),
    )
    assert made(spec).nodes == spec.nodes
    assert made(replace(spec, nodes={**spec.nodes, "/dev/y0": DeviceNumber("c", 5, 0)})).nodes == spec.nodes


@pytest.mark.invariant(1)
def test_a_node_alone_is_no_grant() -> None:
    """linux.devices makes a node and gives no right to open it."""
    assert made(OciSpec(nodes={"/dev/x0": DeviceNumber("c", 1, 0)})).grants == ()


@pytest.mark.invariant(1)
def test_an_annotation_is_no_grant() -> None:
    """A pod's user can choose an annotation: it names the source of what there is."""
    asked = {"cdi.k8s.io/plugin": "nvidia.com/gpu=all", "io.kubernetes.pod.name": "x"}
    assert made(OciSpec(annotations=asked)).grants == ()
    (grant,) = made(OciSpec(allowed=rules("c 1:0 rw"), annotations=asked)).grants
    assert grant.why == f"linux.resources.devices in {WHERE} (CDI: nvidia.com/gpu=all)"


def test_annotations_without_end() -> None:
    """Some of them are told, in characters that can be printed, and once for all rules."""
    annotations = {f"cdi.k8s.io/{number:04}": f"{number:04}\n{'x' * 1000}" for number in range(1000)}
    grants = made(OciSpec(allowed=rules("c 1:0 rw", "c 1:1 rw"), annotations=annotations)).grants
    assert len(grants[0].why) < 2000
    assert "\n" not in grants[0].why
    assert grants[0].why is grants[1].why


def test_a_request_comes_after_the_specification() -> None:
    """Both sources are kept, the stronger first."""
    requested = Requested(
        rules("c 1:0 rw", "c 5:0 rw"), rules("c 1:0 rw", "c 1:1 rw"), "asked", ("of 1:1 nobody knows",)
    )
    record = made(OciSpec(allowed=rules("c 1:0 rwm")), requested)
    assert [(grant.rule.device, grant.source.value) for grant in record.grants] == [("c 1:0", "spec"), ("c 1:0", "env")]
    assert record.doubts == ("of 1:1 nobody knows",)
    assert record.possible is not None
    assert record.possible.covers(Rule.parse("c 1:1 rw"))


@pytest.mark.invariant(1)
def test_a_request_that_was_refused() -> None:
    """What the hook was asked for and did not give is said, and granted to nobody."""
    record = made(OciSpec(), Requested(refusal="its toolkit does not take that"))
    assert (record.asked, record.grants, record.refusal) == (True, (), "its toolkit does not take that")
    assert not made(OciSpec()).asked


@pytest.mark.invariant(9)
def test_what_is_unrestricted_is_granted_nothing() -> None:
    """A container without a filter has nothing that could be given back."""
    record = made(OciSpec(allowed=rules("c 1:0 rw"), unrestricted=True), Requested(rules("c 1:1 rw")))
    assert record.grants == ()
    assert record.possible is not None
    assert record.possible.unrestricted


@pytest.mark.parametrize(
    ("capabilities", "namespaces", "may"),
    [
        (frozenset({"CAP_MKNOD"}), frozenset({"mount"}), False),
        (frozenset({"CAP_SYS_ADMIN"}), frozenset({"mount"}), True),
        (frozenset({"CAP_SYS_ADMIN"}), frozenset({"mount", "user"}), False),
        (None, frozenset(), True),
        (frozenset[str](), frozenset(), False),
    ],
)
def test_who_may_write_device_rules(
    capabilities: Optional[frozenset[str]], namespaces: frozenset[str], *, may: bool
) -> None:
    """It takes CAP_SYS_ADMIN in the first user namespace; a specification without capabilities drops none."""
    spec = OciSpec(capabilities=capabilities, namespaces=namespaces)
    assert may_write(spec) is may
    assert made(spec).trusted is (not may)


@pytest.mark.invariant(1)
@given(st.frozensets(CLOSE_RULES, max_size=5), GUARDED_RULES, GUARDED_RULES)
def test_nothing_is_granted_that_neither_says(
    allowed: frozenset[Rule], asked: frozenset[Rule], possible: frozenset[Rule]
) -> None:
    """Each grant is a guarded rule of its source, with its very numbers and access."""
    for grant in made(OciSpec(allowed=allowed), Requested(asked, possible)).grants:
        assert grant.rule in (allowed if grant.source is Source.SPEC else asked)
        assert guarded(grant.rule)
