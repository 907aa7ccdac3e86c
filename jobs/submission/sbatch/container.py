"""Image, mounts and files of a script that pyxis' options run in a container.

A job has one image and one list of mounts: those of its `#SBATCH` lines and command line, or those
that all of its `srun` lines agree on.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath

from jobs.submission.sbatch.environment import exported_variables
from jobs.submission.sbatch.script_job import ScriptJob
from loadmaster.slurm.options.containers import image_name, mount_list
from loadmaster.slurm.options.values import ValueFormatError
from loadmaster.slurm.scripts.srun_lines import ContainerOption, container_options

# Options of pyxis.
IMAGE = "container-image"
MOUNTS = "container-mounts"
NAME = "container-name"
WORKING_FOLDER = "container-workdir"


def set_container(job: ScriptJob) -> bool:
    """Set image, mounts and working folder; return True if the script runs in a container.

    Notes a problem where an image or a mount cannot be known before the script runs.
    """
    steps = container_options(job.parts["script"], _variables(job))
    image = _image(job, steps)
    if not image:
        _refuse_without_image(job, steps)
        return False
    mounts = _mounts(job, steps)
    if mounts and "mounts" not in job.own:
        job.set_field("mounts", mounts, MOUNTS)
    return True


def _variables(job: ScriptJob) -> dict[str, str]:
    """Return the variables that a script in a container can know before it runs."""
    variables: dict[str, str] = {}
    for name, value in exported_variables(job, in_container=True).items():
        if isinstance(value, str):
            variables[name] = value
    if job.parts["folder"]:
        variables["SLURM_SUBMIT_DIR"] = job.parts["folder"]
    if job.folder:
        variables["PWD"] = job.folder
    return variables


# -- the image


def _image(job: ScriptJob, steps: Sequence[ContainerOption]) -> str:
    """Set and return the image of the job, "" if it has none or a wrong one."""
    # 1. The job's own field, or the option for the whole script. Steps must fit them.
    if "image" in job.own:
        return str(job.own["image"])
    image = job.option_value(IMAGE, image_name, "")
    if image:
        job.set_field("image", image, IMAGE)
        job.submitted.places["runtime"] = str(job.options[IMAGE])
    place = str(job.options.get(IMAGE, ""))

    # 2. Else the one that all steps name.
    for step in _of_name(steps, IMAGE):
        if not step.is_known:
            if not image:
                job.problems.append(_unknown(step))
            continue
        try:
            other = image_name(step.value)
        except ValueFormatError as problem:
            job.problems.append(f"{step}: {problem}")
            continue
        if not image:
            image = other
            place = str(step)
            job.submitted.fields["image"] = image
            job.submitted.places["image"] = place
            job.submitted.places["runtime"] = place
            limit = "the whole script runs in the image of its srun lines, with its mounts alone"
            job.submitted.warnings.append(f"{step}: {limit}")
        elif other != image:
            remedy = "submit a job for each, in order by --dependency"
            conflict = f"a job has one image, and {place} names {image}; {remedy}"
            job.problems.append(f"{step}: {conflict}")
    return image


def _refuse_without_image(job: ScriptJob, steps: Sequence[ContainerOption]) -> None:
    """Note a problem for each option that would have no effect on a script without an image."""
    if job.problems:
        return
    for step in steps:
        if not step.name:
            remedy = "give --container-image to sbatch, or as an #SBATCH line"
            job.problems.append(f"{step.place}: its image cannot be read; {remedy}")
            return
        if step.name in (IMAGE, NAME):
            job.problems.append(_without_image(str(step)))
            return
    if NAME in job.options:
        job.problems.append(_without_image(str(job.options[NAME])))
    for name in (MOUNTS, WORKING_FOLDER):
        if name in job.options:
            job.warn(name, "has no meaning without --container-image and is left out")


def _without_image(place: str) -> str:
    """Return the problem of an option that needs an image."""
    limit = "containers of earlier jobs are not kept here"
    return f"{place}: {limit}; give --container-image as well"


def _unknown(step: ContainerOption) -> str:
    """Return the problem of an option whose value only the run gives."""
    remedy = f"give its variables by --export, or --{step.name} to sbatch"
    return f"{step}: {step.value[:80]} is known only when the script runs; {remedy}"


def _of_name(steps: Sequence[ContainerOption], name: str) -> list[ContainerOption]:
    """Return the options of this name."""
    return [step for step in steps if step.name == name]


# -- mounts


def _mounts(job: ScriptJob, steps: Sequence[ContainerOption]) -> list[str]:
    """Return the mounts of the whole script and of its steps. Two with one target are a problem."""
    mounts = job.option_value(MOUNTS, lambda text: mount_list(text, job.folder), list[str]())
    by_target = {_target_of(mount): mount for mount in mounts}
    for step in _of_name(steps, MOUNTS):
        if not step.is_known:
            # Where sbatch has mounts, srun compares: they may be the same.
            if MOUNTS not in job.options and "mounts" not in job.own:
                job.problems.append(_unknown(step))
            continue
        try:
            mounts_of_step = mount_list(step.value, job.folder)
        except ValueFormatError as problem:
            job.problems.append(f"{step}: {problem}")
            continue
        for mount in mounts_of_step:
            other = by_target.setdefault(_target_of(mount), mount)
            if other != mount:
                remedy = "choose another target for one of them"
                job.problems.append(f"{step}: {mount} and {other} have one target; {remedy}")
        job.submitted.places.setdefault("mounts", str(step))
    return list(by_target.values())


def _target_of(mount: str) -> str:
    """Return the folder in the container of a mount."""
    return mount.split(":")[1]


# -- folder and files


def set_files_of_container(job: ScriptJob, output: str, error_output: str) -> None:
    """Set the working folder in the container, and the output files as far as mounts hold them.

    Without a folder it is the image's.
    """
    folder = job.option_value(WORKING_FOLDER, str, "")
    job.set_field("folder", folder, WORKING_FOLDER)
    for name, option, path in (
        ("output", "output", output),
        ("error_output", "error", error_output),
    ):
        if not path:
            continue
        path_in_container = _path_in_container(job, path)
        if path_in_container:
            job.set_field(name, path_in_container, option)
        else:
            place = str(job.options.get(option, "output"))
            reason = f"no mount that the job may write holds {path}"
            job.submitted.warnings.append(f"{place}: goes to the job's log alone: {reason}")


def _path_in_container(job: ScriptJob, path: str) -> str:
    """Return where a file of the node lies in the container; "" if no writable mount holds it."""
    file = PurePosixPath(job.folder or "/") / path
    path_in_container = ""
    innermost = -1
    for mount in _sound_mounts(job):
        source, target, *mode = mount.split(":")
        # Of mounts within each other the inner one holds, which has the longest source.
        if file.is_relative_to(source) and len(source) > innermost:
            innermost = len(source)
            path_in_container = str(PurePosixPath(target) / file.relative_to(source))
            if mode == ["ro"]:
                path_in_container = ""
    return path_in_container


def _sound_mounts(job: ScriptJob) -> list[str]:
    """Return the mounts of the job; wrong ones, which its validation names, are passed over."""
    mounts = job.own.get("mounts", job.submitted.fields.get("mounts", []))
    if not isinstance(mounts, list):
        return []
    return [mount for mount in mounts if isinstance(mount, str) and mount.count(":") in (1, 2)]
