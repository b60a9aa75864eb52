"""docs/metrics.md and docs/decisions/README.md have what there is: no metric, kind, field or decision more or less."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuguard.guard import blame, told
from gpuguard.model.state import State
from gpuguard.report.kinds import KINDS
from gpuguard.report.metrics import CAUSES, Metrics
from tests.report.support import status

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/metrics.md"
DECISIONS = ROOT / "docs/decisions"


def rows(page: Path, heading: str) -> list[str]:
    """Return the rows of the table below a heading, without its head."""
    section = page.read_text().partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return table[2:]


def metrics() -> Iterator[str]:
    """Yield a row for each metric of gpuguard's, from a daemon to which everything has happened."""
    full = Metrics()
    full.build("1.0", "3.11.7", "252", "v1")
    full.containers([status(1)])
    full.drift("lost", "reload", "systemd")
    full.drift_request("reload", "unattended-upgrade.service")
    full.device_write("systemd")
    full.sentinel("rr")
    full.repair("write", "ok", 0.0001)
    full.outage(0.003)
    full.source_event("signals")
    full.source_up("signals", up=True)
    for family in text_string_to_metric_families(full.render()[1].decode()):
        if not family.name.startswith("gpuguard_"):
            continue  # process_*, which a textfile has not
        assert family.samples, f"{family.name}: nothing happened to it here"
        labels = ", ".join(f"`{label}`" for label in sorted(family.samples[0].labels) if label != "le")
        name = family.name + ("_total" if family.type == "counter" else "")
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def kinds() -> Iterator[str]:
    """Yield a row for each kind of entry."""
    for kind in KINDS:
        message = re.sub(r"\{(\w+)\}", lambda found: f"*{found[1].upper()}*", kind.template)
        yield f"| `{kind.name}` | {kind.level} | {message} | `{kind.message_id}` |"


def fields() -> set[str]:
    """Return the names of the fields that entries have, as the code gives them."""
    names: set[str] = set()
    for module in (told, blame):
        function = {told: "who", blame: "blame"}[module]
        tree = ast.parse(inspect.getsource(getattr(module, function)))
        for found in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            names |= {ast.literal_eval(key) for key in found.keys if key is not None}
    for source in (ROOT / "gpuguard").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id == "emit":
                names |= {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    return names - {"exc_info"}


@pytest.mark.parametrize("made", [metrics, kinds])
def test_tables_are_those_of_the_code(made: object) -> None:
    """Each row is there as the code makes it; a failure shows the whole table, to be pasted."""
    assert callable(made)
    expected = list(made())
    heading = {metrics: "## Metrics", kinds: "## Kinds of journal entries"}[made]
    assert rows(REFERENCE, heading) == expected, "\n" + "\n".join(expected)


def test_every_field_is_explained() -> None:
    """Each field that an entry can have, under the name that the journal has for it, and no other."""
    explained = {name for row in rows(REFERENCE, "## Fields of journal entries") for name in _names(row)}
    assert explained == {f"GPUGUARD_{name.upper()}" for name in {*fields(), "kind", "dropped_entries"}}


def _names(row: str) -> list[str]:
    return re.findall(r"`(GPUGUARD_\w+)`", row.split("|")[1])


def test_values_of_labels_are_named() -> None:
    """Who writes a query finds each state and cause."""
    text = REFERENCE.read_text()
    assert [word for word in (*CAUSES, *(state.value for state in State)) if f"`{word}`" not in text] == []


def test_decisions_are_listed() -> None:
    """Each is in the list, by its number and its title, in order."""
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    pages = sorted(page for page in DECISIONS.glob("*.md") if page.name != "README.md")
    expected = [(page.read_text().partition("\n")[0][2:], page.name) for page in pages]
    assert listed == expected, "\n" + "\n".join(f"- [{title}]({name})" for title, name in expected)


def test_pages_lead_to_what_is_installed() -> None:
    """Each link of a page, which tools/install brings to /usr/share/doc, leads to another that it brings."""
    installed = re.findall(r"find (README.+) -type f", (ROOT / "tools/install").read_text())[0].split()
    tops = [ROOT / name for name in installed]
    pages = [page for top in tops for page in ([top] if top.is_file() else sorted(top.rglob("*.md")))]
    assert DECISIONS / "0001-declare-under-a-shield.md" in pages
    dead = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            brought = any(top in (target, *target.parents) for top in tops)
            if "://" not in link and not (brought and target.exists() and (not anchor or anchor in _anchors(target))):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
