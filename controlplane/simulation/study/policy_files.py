"""Policies in files, for trying an idea; run by the command line only.

A file holds a frozen dataclass whose `__call__` takes a Snapshot and returns a Plan, built on
`loadmaster.policy_api`. See docs/simulator.md.
"""

import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import cast

from policies.contract.policy import Policy, PolicyError, checked


def make_from_file(path: Path, name: str | None, parameters: Mapping[str, object]) -> Policy:
    """Make the policy in a file; `name` selects one of several classes.

    Raises PolicyError where the file cannot be run or holds no such policy, PolicyParameterError
    naming the parameter.
    """
    policy = _chosen(path, _policies_in(_run(path)), name)
    return cast(Policy, policy(**checked(policy, parameters)))


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise PolicyError(f"{path}: no such file")
    name = f"policy_file_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"{path}: a policy's file ends in .py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anybody's code may raise anything while it is run
        del sys.modules[name]
        raise PolicyError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def _policies_in(module: ModuleType) -> dict[str, type]:
    return {
        v.__name__: v
        for v in vars(module).values()
        if isinstance(v, type) and v.__module__ == module.__name__ and is_dataclass(v)
        if any("__call__" in vars(base) for base in v.__mro__)
    }


def _chosen(path: Path, found: Mapping[str, type], name: str | None) -> type:
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is not None and name in found:
        return found[name]
    if not found:
        raise PolicyError(
            f"{path} holds no policy: a frozen dataclass with __call__(self, snapshot)"
        )
    wanted = "several policies" if name is None else f"no policy {name!r}"
    raise PolicyError(f"{path} holds {wanted}; give `name`, one of: {', '.join(found)}")
