"""Settings of an agent: file, environment, options, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster.agent.cli import agent_app
from loadmaster.agent.config import AgentConfig, ConfigError, read_config, users_of
from loadmaster.agent.runtimes.cgroups import Resource


class TestConfig:
    def test_the_command_line_goes_before_the_environment_before_the_file(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "agent.yaml"
        path.write_text("server: http://file\nname: from-file\nrack: r1\nstop-jobs-on-exit: true\n")
        options = {"config": path, "server": "http://option", "name": None}
        found = read_config(
            options, {"LOADMASTER_SERVER": "http://env", "LOADMASTER_NODE_NAME": "from-env"}
        )
        assert (found.server, found.name, found.rack, found.stop_jobs_on_exit) == (
            "http://option",
            "from-env",
            "r1",
            True,
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[1, 2]", "must hold fields by name, such as `rack: r1`"),
            ("a: {", "is no YAML"),
            ("rack: a\nrack: b\n", "line 2: 'rack' is given twice"),
            ("docker: {pull: never, pull: always}\n", "line 1: 'pull' is given twice"),
            ("log-format: json\nlog_format: text\n", "is given with - and with _"),
            ("server: http://s\ninsecure: perhaps\n", "--insecure: "),
            ("server: http://s\nname: 7\n", "--name: "),
            ("server: http://s\nspeed: 7\n", "--speed: "),
        ],
    )
    def test_refuses_a_file_and_says_where(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "agent.yaml").write_text(text)
        with pytest.raises(ConfigError, match=re.escape(said)):
            read_config({"config": tmp_path / "agent.yaml"}, {})

    def test_an_error_of_syntax_names_the_line_without_its_secret(self, tmp_path: Path) -> None:
        (tmp_path / "agent.yaml").write_text("server: http://s\ntoken: s3cret: x\n")
        with pytest.raises(ConfigError, match="line 2: mapping values are not allowed") as error:
            read_config({"config": tmp_path / "agent.yaml"}, {})
        assert "s3cret" not in str(error.value)

    def test_a_file_of_comments_sets_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "agent.yaml").write_text("# rack: r1\n")
        found = read_config({"config": tmp_path / "agent.yaml", "server": "http://s"}, {})
        assert (found.server, found.rack) == ("http://s", "")

    def test_the_nodes_share_a_folder_of_checkpoints_if_told_where_it_is(self) -> None:
        assert read_config({"server": "http://s"}, {}).checkpoints is None
        assert read_config(
            {"server": "http://s"}, {"LOADMASTER_CHECKPOINTS": "/shared"}
        ).checkpoints == Path("/shared")

    @pytest.mark.parametrize("where", ["option", "environment", "file"])
    def test_a_persons_token_does_not_replace_a_token_file(
        self, tmp_path: Path, where: str
    ) -> None:
        (tmp_path / "token").write_text("enrolment\n")
        (tmp_path / "agent.yaml").write_text(f"token-file: {tmp_path / 'token'}\n")
        options: dict[str, Any] = {"server": "http://s"}
        environ = {"LOADMASTER_TOKEN": "a person's"}
        if where == "option":
            options["token_file"] = tmp_path / "token"
        elif where == "environment":
            environ["LOADMASTER_TOKEN_FILE"] = str(tmp_path / "token")
        else:
            options["config"] = tmp_path / "agent.yaml"
        assert read_config(options, environ).token == "enrolment"

    def test_a_token_of_the_environment_counts_where_no_other_is_named(self) -> None:
        environ = {"LOADMASTER_TOKEN": "enrolment"}
        assert read_config({"server": "http://s"}, environ).token == "enrolment"
        assert read_config({"server": "http://s", "token": "own"}, environ).token == "own"

    def test_the_token_comes_from_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("secret\n")
        assert (
            read_config({"server": "http://s", "token_file": tmp_path / "token"}, {}).token
            == "secret"
        )

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({}, "--server"),
            ({"server": "host:80"}, "--server"),
            ({"server": "http://s", "runtime": "podman"}, "--runtime"),
            ({"server": "http://s", "token_file": "/no/such"}, "--token-file"),
            ({"server": "http://s", "config": "/no/such"}, "--config"),
            ({"server": "http://s", "colour": "red"}, "colour"),
            ({"server": "http://s", "isolation": "some"}, "--isolation: must be one of auto, none"),
            ({"server": "http://s", "users": "0-9"}, "--users: give the first and the last"),
            ({"server": "http://s", "users": "70000"}, "--users: give the first and the last"),
            ({"server": "http://s", "mounts": "data"}, "--mounts: write /folder or /folder:rw"),
            (
                {"server": "http://s", "cgroups": "memory,disk"},
                "--cgroups: name some of memory,processes,cores, or none, not 'disk'",
            ),
        ],
    )
    def test_names_what_is_wrong(self, options: dict[str, Any], word: str) -> None:
        with pytest.raises(ConfigError, match=word):
            read_config(options, {})

    @pytest.mark.parametrize(
        ("text", "resources"),
        [
            ("none", ()),
            ("cores, memory", (Resource.MEMORY, Resource.CORES)),
            (["processes"], (Resource.PROCESSES,)),
            (None, (Resource.MEMORY, Resource.PROCESSES, Resource.CORES)),
        ],
    )
    def test_limits_by_cgroups_are_named(self, text: Any, resources: tuple[Resource, ...]) -> None:
        assert read_config({"server": "http://s", "cgroups": text}, {}).cgroups == resources

    def test_folders_for_isolated_jobs_come_from_a_list_or_a_text(self, tmp_path: Path) -> None:
        (tmp_path / "agent.yaml").write_text("mounts: [/srv/data, '/srv/scratch:rw']\n")
        of_file = read_config({"server": "http://s", "config": tmp_path / "agent.yaml"}, {})
        of_environment = read_config(
            {"server": "http://s"}, {"LOADMASTER_MOUNTS": "/srv/data,/srv/scratch:rw"}
        )
        assert of_file.mounts == of_environment.mounts
        assert [mount.writable for mount in of_file.mounts] == [False, True]
        assert users_of(read_config({"server": "http://s", "users": "70000-70009"}, {}).users) == (
            range(70_000, 70_010)
        )

    @pytest.mark.parametrize("slots", ["0", 17, "many", True])
    def test_slots_out_of_range_are_refused_with_the_range(self, slots: object) -> None:
        with pytest.raises(ConfigError, match="--slots-per-gpu: must be") as caught:
            read_config({"server": "http://s", "slots_per_gpu": slots}, {})
        assert str(slots) not in ("0", "17") or "must be >= 1 and <= 16" in str(caught.value)

    def test_options_of_docker_that_are_not_given_leave_those_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served: list[AgentConfig] = []
        monkeypatch.setattr("loadmaster.agent.cli.serve", served.append)
        for arguments in ([], ["--docker", "pids=7"]):
            environ = {"LOADMASTER_DOCKER": "pull=never;pids=5"}
            server = ["--server", "http://s"]
            assert CliRunner().invoke(agent_app, [*server, *arguments], env=environ).exit_code == 0
        assert [config.docker for config in served] == [
            {"pull": "never", "pids": "5"},
            {"pids": "7"},
        ]

    def test_certificates_are_checked_unless_told_otherwise(self) -> None:
        assert read_config({"server": "https://s"}, {}).verify is True
        assert read_config({"server": "https://s", "insecure": True}, {}).verify is False
        assert read_config({"server": "https://s", "ca": "/ca.pem"}, {}).verify == "/ca.pem"


def test_a_token_that_yaml_reads_as_a_number_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("server: http://s\ntoken: 123456789\n")
    with pytest.raises(ConfigError, match="--token: must be a text: put it in quotes") as caught:
        read_config({"config": file}, {})
    assert "123456789" not in str(caught.value)
