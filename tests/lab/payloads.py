"""Podman's containers in a service of systemd's, in a control group below it instead of a scope of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tests.lab import image
from tests.lab.containers import Container, Podman
from tests.lab.devices import Device

_GENERATOR = "/usr/lib/systemd/system-generators/podman-system-generator"


class Split(Podman):
    """Podman's `--cgroups=split`: the service is lab-NAME.service."""

    # conmon, not podman, stays: systemd finds it alone in the service, as a service's main process.
    _service: Sequence[str] = ("--collect", "--service-type=forking", "--property=Delegate=yes")

    def scope(self, container: Container) -> str:
        """Return a container's unit."""
        return f"lab-{container.name}.service"

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        podman = [*self.client, *self._arguments(name, devices, ["--cgroups=split", *args])]
        self.node.run(["systemd-run", f"--unit=lab-{name}.service", *self._service, *podman])


class Quadlet(Podman):
    """Podman's quadlets: NAME.container becomes NAME.service by a generator of Podman's. It needs Podman 4.4."""

    def unable(self) -> Optional[str]:
        """Say why this node has no quadlets, or return None."""
        if self.node.path(_GENERATOR).exists():
            return None
        version = self.node.run(["podman", "--version"], check=False).stdout.strip() or "no podman"
        return f"quadlets need Podman 4.4; here is {version}"

    def scope(self, container: Container) -> str:
        """Return a container's unit."""
        return f"{container.name}.service"

    def remove(self, container: Container) -> None:
        """End and remove a container, if it is still there."""
        self.node.run(["systemctl", "stop", self.scope(container)], check=False)
        self.node.path(f"/etc/containers/systemd/{container.name}.container").unlink(missing_ok=True)
        self.node.run(["systemctl", "daemon-reload"])
        super().remove(container)

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        quadlet = self.node.path(f"/etc/containers/systemd/{name}.container")
        quadlet.parent.mkdir(parents=True, exist_ok=True)
        lines = ["[Container]", f"Image={image.NAME}", "Exec=/bin/sleep 1000000", f"ContainerName={name}"]
        lines += ["Network=none", f"GlobalArgs={' '.join(self.client[1:])}"]
        lines += [f"PodmanArgs={' '.join([*self.run_options, *args])}"]
        lines += [f"AddDevice={device.path}" for device in devices]
        quadlet.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.node.run(["systemctl", "daemon-reload"])
        self.node.run(["systemctl", "start", f"{name}.service"])
