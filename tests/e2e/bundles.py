"""Containers of the low-level runtime alone: runc with systemd, a bundle and the hook, without an engine."""

from __future__ import annotations

import io
import json
import secrets
import shlex
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e import hooks
from tests.lab import image
from tests.lab.devices import Device
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.nvidia import runtime

TRIES = 3
_ROOT = "/root/bundles"
_OWN_GAP = "open /dev/null: operation not permitted"


class Bundle:
    """One container. Get it by `Bundles.make()`; its scope is named as one of Docker's."""

    def __init__(self, node: Node, identity: str) -> None:
        self.id = identity
        self.node = node
        self.scope = f"docker-{identity}.scope"

    @property
    def cgroup(self) -> Path:
        """Its devices cgroup (v1) or its cgroup (v2), seen from outside."""
        return self.node.cgroup(self.scope)

    @property
    def said(self) -> str:
        """What runc said when it was made, and the hook."""
        return self.node.path(f"{_ROOT}/{self.id}/log").read_text(encoding="utf-8")

    def begin(self, verb: str = "run --detach") -> subprocess.Popen[bytes]:
        """Run it, or make it and go no further ("create"); the process ends with the hook, and fails with it."""
        bundle = f"{_ROOT}/{self.id}"
        # The container keeps what runc was given to write to.
        command = f"exec runc --systemd-cgroup {verb} --bundle {bundle} {self.id} </dev/null >{bundle}/log 2>&1"
        return self.node.popen(["sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def make(self, verb: str) -> None:
        """Do that and wait for its end, again where it must. Raises LabError with what was said."""
        for _ in range(TRIES):
            if not self.begin(verb).wait(60):
                return
            if not self.again():
                break
        raise LabError(f"runc {verb}: {self.said}")

    def again(self) -> bool:
        """Return whether its start failed in a gap of systemd's own, and remove what is left of it then.

        Where systemd rewrites the rules of cgroup v1 just when runc opens /dev/null, a start fails, guard or no guard.
        """
        unlucky = _OWN_GAP in self.said
        if unlucky:
            self.runc("delete --force")
        return unlucky

    def runc(self, verb: str, *argv: str) -> None:
        """Do something to it."""
        self.node.run(["runc", *shlex.split(verb), self.id, *argv])


class Bundles:
    """Makes bundles in a node that has the hook."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._made: list[Bundle] = []
        self._root = node.path(f"{_ROOT}/rootfs")
        if not self._root.exists():
            self._root.mkdir(parents=True)
            with tarfile.open(fileobj=io.BytesIO(image.archive())) as archive:
                archive.extractall(self._root)  # noqa: S202  # made here
            node.run(["runc", "spec", "--bundle", _ROOT])
        self._spec = json.loads(node.path(f"{_ROOT}/config.json").read_text(encoding="utf-8"))

    def make(
        self,
        pause: float = 0.0,
        devices: Sequence[Device] = (),
        argv: Sequence[str] = ("/bin/sleep", "1000000"),
        *,
        visible: str = "",
    ) -> Bundle:
        """Make one whose hook waits `pause` seconds after each device; or NVIDIA's gives it what `visible` asks for."""
        bundle = Bundle(self.node, secrets.token_hex(32))
        self._made.append(bundle)
        spec = json.loads(json.dumps(self._spec))
        spec["process"].update(terminal=False, args=list(argv))
        spec["root"] = {"path": f"{_ROOT}/rootfs", "readonly": True}
        spec["hostname"] = "lab"
        spec["linux"]["cgroupsPath"] = f"system.slice:docker:{bundle.id}"
        spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={visible or 'void'}")
        numbers = [""] if visible else [f"{device.major}:{device.minor}" for device in devices]
        nvidia = [runtime.ENTRY] if visible else []
        spec["hooks"] = {"prestart": [*nvidia, {"path": hooks.HOOK, "args": ["hook", str(pause), *numbers]}]}
        directory = self.node.path(f"{_ROOT}/{bundle.id}")
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(spec), encoding="utf-8")
        return bundle

    def clear(self) -> None:
        """End and remove all of them."""
        listed = self.node.run(["runc", "list", "--quiet"]).stdout.split()
        for bundle in self._made:
            if bundle.id in listed:
                self.node.run(["runc", "delete", "--force", bundle.id], check=False)
        self._made.clear()


@contextmanager
def bundles(node: Node) -> Iterator[Bundles]:
    """Install the hook, and remove the containers afterwards."""
    hooks.install(node)
    made = Bundles(node)
    try:
        yield made
    finally:
        made.clear()
