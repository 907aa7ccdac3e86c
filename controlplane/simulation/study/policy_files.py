"""Policies in files, for trying an idea; run by the command line only.

A file has a frozen dataclass whose `__call__` takes a Snapshot and returns a Plan, built on
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

    Raises PolicyError if the file cannot be run or has no such policy, PolicyParameterError for a
    wrong parameter, which it names.
    """
    policies = _policies_in(_imported(path))
    policy = _chosen(path, policies, name)
    return cast(Policy, policy(**checked(policy, parameters)))


def _imported(path: Path) -> ModuleType:
    """Run the file as a module. Raises PolicyError."""
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
    """Return the module's own dataclasses with a method `__call__`, by name."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    policies: dict[str, type] = {}
    for each in classes:
        is_callable = any("__call__" in vars(base) for base in each.__mro__)
        if each.__module__ == module.__name__ and is_dataclass(each) and is_callable:
            policies[each.__name__] = each
    return policies


def _chosen(path: Path, policies: Mapping[str, type], name: str | None) -> type:
    """Return the policy of this name, or the only one. Raises PolicyError."""
    if name is None and len(policies) == 1:
        return next(iter(policies.values()))
    if name is not None and name in policies:
        return policies[name]
    if not policies:
        form = "a frozen dataclass with __call__(self, snapshot)"
        raise PolicyError(f"{path} holds no policy: {form}")
    problem = "several policies" if name is None else f"no policy {name!r}"
    raise PolicyError(f"{path} holds {problem}; give `name`, one of: {', '.join(policies)}")
