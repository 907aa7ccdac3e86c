"""Image, mounts and files of a script that pyxis' options run in a container.

A job has one image and one list of mounts: those of its `#SBATCH` lines and command line, or those
that all of its `srun` lines agree on.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from jobs.submission.sbatch.environment import exported_variables
from jobs.submission.sbatch.reader import Reader
from loadmaster.slurm.options.containers import image_name, mount_list
from loadmaster.slurm.options.values import ValueFormatError
from loadmaster.slurm.scripts.srun_lines import ContainerOption, container_options

IMAGE = "container-image"
MOUNTS = "container-mounts"
NAME = "container-name"
WORKING_FOLDER = "container-workdir"


def put_container(reader: Reader) -> bool:
    """Put image, mounts and working folder; return True if the script runs in a container.

    Notes a problem where an image or a mount cannot be known before the script runs.
    """
    steps = container_options(reader.parts["script"], _variables(reader))
    image = _image(reader, steps)
    if not image:
        _refuse_without_image(reader, steps)
        return False
    mounts = _mounts(reader, steps)
    if mounts and "mounts" not in reader.own:
        reader.put("mounts", mounts, MOUNTS)
    return True


def _variables(reader: Reader) -> dict[str, str]:
    """Return the variables that a script in a container can know before it runs."""
    variables: dict[str, str] = {}
    for name, value in exported_variables(reader, in_container=True).items():
        if isinstance(value, str):
            variables[name] = value
    if reader.parts["folder"]:
        variables["SLURM_SUBMIT_DIR"] = reader.parts["folder"]
    if reader.folder:
        variables["PWD"] = reader.folder
    return variables


# -- the image


def _image(reader: Reader, steps: Sequence[ContainerOption]) -> str:
    """Put and return the image of the job, "" if it has none or a wrong one."""
    # 1. The job's own field, or the option for the whole script. Steps must fit them.
    if "image" in reader.own:
        return str(reader.own["image"])
    image = reader.read(IMAGE, image_name, "")
    if image:
        reader.put("image", image, IMAGE)
        reader.result.places["runtime"] = str(reader.options[IMAGE])
    place = str(reader.options.get(IMAGE, ""))

    # 2. Else the one that all steps name.
    for step in _of_name(steps, IMAGE):
        if not step.is_known:
            if not image:
                reader.problems.append(_unknown(step))
            continue
        try:
            other = image_name(step.value)
        except ValueFormatError as problem:
            reader.problems.append(f"{step}: {problem}")
            continue
        if not image:
            image = other
            place = str(step)
            reader.result.fields["image"] = image
            reader.result.places["image"] = place
            reader.result.places["runtime"] = place
            limit = "the whole script runs in the image of its srun lines, with its mounts alone"
            reader.result.warnings.append(f"{step}: {limit}")
        elif other != image:
            remedy = "submit a job for each, in order by --dependency"
            reader.problems.append(
                f"{step}: a job has one image, and {place} names {image}; {remedy}"
            )
    return image


def _refuse_without_image(reader: Reader, steps: Sequence[ContainerOption]) -> None:
    """Note a problem for each option that would have no effect on a script without an image."""
    if reader.problems:
        return
    for step in steps:
        if not step.name:
            remedy = "give --container-image to sbatch, or as an #SBATCH line"
            reader.problems.append(f"{step.place}: its image cannot be read; {remedy}")
            return
        if step.name in (IMAGE, NAME):
            reader.problems.append(_without_image(str(step)))
            return
    if NAME in reader.options:
        reader.problems.append(_without_image(str(reader.options[NAME])))
    for name in (MOUNTS, WORKING_FOLDER):
        if name in reader.options:
            reader.warn(name, "has no meaning without --container-image and is left out")


def _without_image(place: str) -> str:
    limit = "containers of earlier jobs are not kept here"
    return f"{place}: {limit}; give --container-image as well"


def _unknown(step: ContainerOption) -> str:
    """Return the problem of an option whose value only the run gives."""
    remedy = f"give its variables by --export, or --{step.name} to sbatch"
    return f"{step}: {step.value[:80]} is known only when the script runs; {remedy}"


def _of_name(steps: Sequence[ContainerOption], name: str) -> Iterator[ContainerOption]:
    return (step for step in steps if step.name == name)


# -- mounts


def _mounts(reader: Reader, steps: Sequence[ContainerOption]) -> list[str]:
    """Return the mounts of the whole script and of its steps. Two with one target are a problem."""
    mounts = reader.read(MOUNTS, lambda text: mount_list(text, reader.folder), list[str]())
    by_target = {_target_of(mount): mount for mount in mounts}
    for step in _of_name(steps, MOUNTS):
        if not step.is_known:
            # Where sbatch has mounts, srun compares: they may be the same.
            if MOUNTS not in reader.options and "mounts" not in reader.own:
                reader.problems.append(_unknown(step))
            continue
        try:
            mounts_of_step = mount_list(step.value, reader.folder)
        except ValueFormatError as problem:
            reader.problems.append(f"{step}: {problem}")
            continue
        for mount in mounts_of_step:
            other = by_target.setdefault(_target_of(mount), mount)
            if other != mount:
                remedy = "choose another target for one of them"
                reader.problems.append(f"{step}: {mount} and {other} have one target; {remedy}")
        reader.result.places.setdefault("mounts", str(step))
    return list(by_target.values())


def _target_of(mount: str) -> str:
    return mount.split(":")[1]


# -- folder and files


def put_files_of_container(reader: Reader, output: str, error_output: str) -> None:
    """Put the working folder in the container, and the output files as far as mounts hold them.

    Without a folder it is the image's.
    """
    folder = reader.read(WORKING_FOLDER, str, "")
    reader.put("folder", folder, WORKING_FOLDER)
    for name, option, path in (
        ("output", "output", output),
        ("error_output", "error", error_output),
    ):
        if not path:
            continue
        path_in_container = _path_in_container(reader, path)
        if path_in_container:
            reader.put(name, path_in_container, option)
        else:
            place = str(reader.options.get(option, "output"))
            reason = f"no mount that the job may write holds {path}"
            reader.result.warnings.append(f"{place}: goes to the job's log alone: {reason}")


def _path_in_container(reader: Reader, path: str) -> str:
    """Return where a file of the node lies in the container; "" if no writable mount holds it."""
    file = PurePosixPath(reader.folder or "/") / path
    found = ""
    longest = -1
    for mount in _sound_mounts(reader):
        source, target, *mode = mount.split(":")
        # Of mounts within each other the inner one holds.
        if file.is_relative_to(source) and len(source) > longest:
            longest = len(source)
            is_writable = mode != ["ro"]
            found = str(PurePosixPath(target) / file.relative_to(source)) if is_writable else ""
    return found


def _sound_mounts(reader: Reader) -> list[str]:
    """Return the mounts of the job; wrong ones, which its validation names, are passed over."""
    mounts = reader.own.get("mounts", reader.result.fields.get("mounts", []))
    if not isinstance(mounts, list):
        return []
    return [mount for mount in mounts if isinstance(mount, str) and mount.count(":") in (1, 2)]
