"""Images and mounts as pyxis and enroot write them."""

import pytest

from loadmaster.slurm.options.containers import image_name, mount_list
from loadmaster.slurm.options.values import ValueFormatError

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("docker://nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("$oauthtoken@nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("docker://me@registry.example:5000#team/train:1", "registry.example:5000/team/train:1"),
        ("docker://ubuntu:22.04", "ubuntu:22.04"),
        ("ubuntu", "ubuntu:latest"),
        ("registry.example:5000#train", "registry.example:5000/train:latest"),
        ("dockerd://local/train:1", "local/train:1"),
        (f"ubuntu@{DIGEST}", f"ubuntu@{DIGEST}"),
        (f"ghcr.io#org/train@{DIGEST}", f"ghcr.io/org/train@{DIGEST}"),
    ],
)
def test_an_image_of_enroot_has_a_registrys_name(text: str, image: str) -> None:
    assert image_name(text) == image


@pytest.mark.parametrize(
    "text",
    ["/images/train.sqsh", "train.sqsh", "./train.sqsh", "~/train.SQSH", "/images/train", "x.sqfs"],
)
def test_a_squash_file_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueFormatError, match="squash file or path"):
        image_name(text)


@pytest.mark.parametrize("text", ["nvcr.io", "docker://registry.example.org"])
def test_a_registry_without_an_image_is_refused(text: str) -> None:
    with pytest.raises(ValueFormatError, match="is a registry without an image"):
        image_name(text)


@pytest.mark.parametrize("text", ["", "docker://", "nvcr.io#"])
def test_an_empty_image_is_refused(text: str) -> None:
    with pytest.raises(ValueFormatError, match="is no image"):
        image_name(text)


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("/a:/b", ["/a:/b"]),
        ("/a:/b:ro", ["/a:/b:ro"]),
        ("/a:/b:rw", ["/a:/b"]),
        ("/a", ["/a:/a"]),
        ("/a:/b:ro+rprivate,/c/", ["/a:/b:ro", "/c:/c"]),
        (" /a:/b , /a:/b,", ["/a:/b"]),
        (".:/work", ["/home/me:/work"]),
        ("./x/../y:/y", ["/home/me/y:/y"]),
        ("x/y:/y", ["/home/me/x/y:/y"]),
        ("", []),
    ],
)
def test_mounts_of_pyxis_are_those_of_a_job(text: str, mounts: list[str]) -> None:
    assert mount_list(text, "/home/me") == mounts


@pytest.mark.parametrize(
    "text", ["/a:b", "tmpfs:/tmp", "~/x:/x", "/a:/b:rox", "/a:/b:ro:x", "/a:/b:", ":/b"]
)
def test_a_wrong_mount_is_refused(text: str) -> None:
    with pytest.raises(ValueFormatError, match="is no mount"):
        mount_list(text, "/home/me")


def test_a_long_list_of_mounts_is_refused() -> None:
    with pytest.raises(ValueFormatError, match="may have 4000"):
        mount_list("/a," * 2000, "")
