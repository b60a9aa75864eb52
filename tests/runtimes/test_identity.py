"""Names of containers, from files that real engines wrote and from made ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.model.oci_spec import Mount, OciSpec
from gpuguard.model.runtime_record import Bundle, Identity
from gpuguard.model.scope_name import ContainerScope
from gpuguard.runtimes.identity import find_identity
from gpuguard.runtimes.trusted import TrustedFiles
from tests.runtimes.tree import Tree, needs_root

pytestmark = needs_root

DATA = Path(__file__).parent / "data"
DOCKER_TEXT = (DATA / "docker-config.v2.json").read_text(encoding="utf-8")
DOCKER_ID = json.loads(DOCKER_TEXT)["ID"]
PODMAN_TEXT = (DATA / "podman-containers.json").read_text(encoding="utf-8")
PODMAN_ID = json.loads(PODMAN_TEXT)[0]["id"]
DOCKER = ContainerScope("docker", DOCKER_ID)
PODMAN = ContainerScope("podman", PODMAN_ID)


def identity(
    tree: Tree, container: ContainerScope, spec: Optional[OciSpec] = None, path: str = "/b/config.json"
) -> Identity:
    """Look for the names of a container with this specification."""
    return find_identity(TrustedFiles(tree.root), container, Bundle(path, spec or OciSpec(), 0.0))


def annotated(notes: Mapping[str, str]) -> OciSpec:
    """Return a specification with these annotations."""
    return OciSpec(annotations=notes)


class TestDocker:
    """Docker's own file below its data root, wherever that is."""

    def test_the_default_data_root(self, tree: Tree) -> None:
        """The name without Docker's slash."""
        tree.write(f"/var/lib/docker/containers/{DOCKER_ID}/config.v2.json", DOCKER_TEXT)
        assert identity(tree, DOCKER) == Identity("trainer")

    def test_the_data_root_of_the_settings(self, tree: Tree) -> None:
        """What daemon.json says."""
        tree.write("/etc/docker/daemon.json", '{"data-root": "/srv/docker/"}')
        tree.write(f"/srv/docker/containers/{DOCKER_ID}/config.v2.json", DOCKER_TEXT)
        assert identity(tree, DOCKER) == Identity("trainer")

    def test_the_data_root_of_the_mounts(self, tree: Tree) -> None:
        """What dockerd mounts into the container shows its data root; somebody else's id does not."""
        tree.write(f"/data/containers/{DOCKER_ID}/config.v2.json", DOCKER_TEXT)
        other = Mount("/x", f"/other/containers/{'0' * 64}/hosts")
        spec = OciSpec(mounts=(other, Mount("/etc/hosts", f"/data/containers/{DOCKER_ID}/hosts")))
        assert identity(tree, DOCKER, spec) == Identity("trainer")

    @pytest.mark.invariant(10)
    def test_mounts_without_end(self, tree: Tree) -> None:
        """Only the first of a container's mounts leads anywhere: any number may have been asked for."""
        tree.write(f"/data/containers/{DOCKER_ID}/config.v2.json", DOCKER_TEXT)
        decoys = (Mount("/x", f"/x{number}/containers/{DOCKER_ID}/hosts") for number in range(100))
        spec = OciSpec(mounts=(*decoys, Mount("/etc/hosts", f"/data/containers/{DOCKER_ID}/hosts")))
        assert identity(tree, DOCKER, spec) == Identity()

    def test_a_pod_s_container(self, tree: Tree) -> None:
        """cri-dockerd labels the containers of pods."""
        labels = {
            "io.kubernetes.container.name": "main",
            "io.kubernetes.pod.name": "train-0",
            "io.kubernetes.pod.namespace": "research",
        }
        text = json.dumps({"Name": "/k8s_main_train-0", "Config": {"Labels": labels}})
        tree.write(f"/var/lib/docker/containers/{DOCKER_ID}/config.v2.json", text)
        assert identity(tree, DOCKER) == Identity("main", "research", "train-0")

    def test_no_file_no_name(self, tree: Tree) -> None:
        """Without the file there is no name, and no doubt."""
        assert identity(tree, DOCKER) == find_identity(TrustedFiles(tree.root), DOCKER, None) == Identity()

    def test_others_may_write_it(self, tree: Tree) -> None:
        """A name is not taken from a file that others may write, and the reason is kept."""
        tree.write(f"/var/lib/docker/containers/{DOCKER_ID}/config.v2.json", DOCKER_TEXT).chmod(0o666)
        found = identity(tree, DOCKER)
        assert found.name is None
        assert "others than root may write it" in (found.doubt or "")

    @pytest.mark.parametrize("text", ["", "[]", '{"Name": 1}', '{"Config": [], "Name": "/x"}', "[" * 100_000])
    def test_a_malformed_file(self, tree: Tree, text: str) -> None:
        """A file that makes no sense costs the name alone."""
        path = f"/var/lib/docker/containers/{DOCKER_ID}/config.v2.json"
        tree.write(path, text)
        assert (identity(tree, DOCKER).doubt or "").startswith(path)

    def test_malformed_settings(self, tree: Tree) -> None:
        """The same of daemon.json, where it is needed."""
        tree.write("/etc/docker/daemon.json", "{data-root: x}")
        assert (identity(tree, DOCKER).doubt or "").startswith("/etc/docker/daemon.json: not JSON")


class TestPodman:
    """The list of the storage that the bundle lies in."""

    def test_the_bundle_s_storage(self, tree: Tree) -> None:
        """A storage that is elsewhere is known by the bundle."""
        tree.write("/data/vfs-containers/containers.json", PODMAN_TEXT)
        path = f"/data/vfs-containers/{PODMAN_ID}/userdata/config.json"
        assert identity(tree, PODMAN, path=path) == Identity("sleeper")

    def test_the_default_storage(self, tree: Tree) -> None:
        """Without a bundle, root's default storage."""
        tree.write("/var/lib/containers/storage/overlay-containers/containers.json", PODMAN_TEXT)
        assert find_identity(TrustedFiles(tree.root), PODMAN, None) == Identity("sleeper")

    def test_a_container_that_is_removed_at_its_end(self, tree: Tree) -> None:
        """The storage keeps a list of its own of these, which quadlets are."""
        tree.write("/data/vfs-containers/containers.json", "[]")
        tree.write("/data/vfs-containers/volatile-containers.json", PODMAN_TEXT)
        path = f"/data/vfs-containers/{PODMAN_ID}/userdata/config.json"
        assert identity(tree, PODMAN, path=path) == Identity("sleeper")

    @pytest.mark.parametrize("text", ["[]", '[{"id": "x", "names": ["other"]}]', f'[{{"id": "{PODMAN_ID}"}}]'])
    def test_not_in_the_list(self, tree: Tree, text: str) -> None:
        """Another container's name is not taken."""
        tree.write("/var/lib/containers/storage/overlay-containers/containers.json", text)
        assert identity(tree, PODMAN) == Identity()


class TestAnnotations:
    """What Kubernetes' runtimes note in the specification."""

    @pytest.mark.parametrize(
        ("runtime", "notes", "wanted"),
        [
            (
                "containerd",
                {
                    "io.kubernetes.cri.container-name": "main",
                    "io.kubernetes.cri.sandbox-name": "train-0",
                    "io.kubernetes.cri.sandbox-namespace": "research",
                },
                Identity("main", "research", "train-0"),
            ),
            (
                "cri-o",
                {
                    "io.kubernetes.container.name": "main",
                    "io.kubernetes.pod.name": "train-0",
                    "io.kubernetes.pod.namespace": "research",
                    "io.kubernetes.cri.container-name": "a label of the pod's",
                },
                Identity("main", "research", "train-0"),
            ),
            ("containerd", {"io.kubernetes.cri.sandbox-name": "train-0"}, Identity(pod="train-0")),
            ("nerdctl", {"nerdctl/name": "trainer", "nerdctl/namespace": "default"}, Identity("trainer")),
            ("containerd", {}, Identity()),
            ("systemd", {"io.kubernetes.cri.container-name": "main"}, Identity()),
        ],
    )
    def test_names(self, tree: Tree, runtime: str, notes: dict[str, str], wanted: Identity) -> None:
        """Container, namespace and pod, as far as they are noted."""
        assert identity(tree, ContainerScope(runtime, "x"), annotated(notes)) == wanted

    def test_docker_s_users_name_no_pods(self, tree: Tree) -> None:
        """Annotations of a container of Docker's or Podman's are its user's."""
        notes = annotated({"io.kubernetes.cri.container-name": "main", "io.kubernetes.cri.sandbox-name": "kube-system"})
        assert identity(tree, DOCKER, notes) == identity(tree, PODMAN, notes) == Identity()

    def test_a_hostile_name(self, tree: Tree) -> None:
        """Control characters and endless names do not get past the identity."""
        notes = annotated({"io.kubernetes.cri.container-name": "\x1b[2Jx\n" + "y" * 10_000})
        found = identity(tree, ContainerScope("containerd", "x"), notes).name
        assert found is not None
        assert found.startswith("\ufffd[2Jx\ufffdyy")
        assert len(found) == 253
        assert found.isprintable()


def test_a_machine_s_name(tree: Tree) -> None:
    """A machine's id is its name."""
    assert identity(tree, ContainerScope("nspawn", "my-gpu")) == Identity("my-gpu")
