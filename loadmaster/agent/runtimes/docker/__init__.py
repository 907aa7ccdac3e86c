"""The Docker runtime: a container per job, with the lease guard as first process."""

from loadmaster.agent.runtimes.docker.engine import DockerEngine
from loadmaster.agent.runtimes.docker.options import DockerOptions, OptionError
from loadmaster.agent.runtimes.docker.port import EngineDownError
from loadmaster.agent.runtimes.docker.runtime import DockerRuntime

__all__ = ["DockerEngine", "DockerOptions", "DockerRuntime", "EngineDownError", "OptionError"]
