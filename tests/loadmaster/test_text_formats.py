"""Encodings and forms of job files and YAML that people bring."""

from pathlib import Path

import pytest

from controlplane.web.bounded_data import read_yaml
from loadmaster.client.job_file import read_job_file
from loadmaster.strict_yaml import DocumentError, parse_yaml

JOB = "name: digits\ncommand: [python, train.py]\nsteps: 10\n"
TABBED = '{\n\t"name": "digits",\n\t"command": ["python", "train.py"],\n\t"steps": 10\n}\n'
FIELDS = {"name": "digits", "command": ["python", "train.py"], "steps": 10}


@pytest.mark.parametrize("text", [JOB, TABBED])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_job_file_of_any_editor_is_read(
    tmp_path: Path, text: str, encoding: str, ends: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(text.replace("\n", ends).encode(encoding))
    assert read_job_file(path) == FIELDS


@pytest.mark.parametrize("text", [JOB, TABBED])
def test_pages_read_the_same_forms(text: str) -> None:
    assert read_yaml("\ufeff" + text) == FIELDS


def test_yaml_indented_by_a_tab_names_line_and_remedy() -> None:
    text = "environment:\n\tSEED: 1\n"
    said = "line 2: is indented by a tab; YAML is indented by spaces"
    with pytest.raises(DocumentError, match=said):
        parse_yaml(text)
    with pytest.raises(ValueError, match=said):
        read_yaml(text)


@pytest.mark.parametrize("text", ['{\n\t"a": 1,\n\t"a": 2\n}', '{"a": 1, "a": 2}'])
def test_name_given_twice_in_json_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        parse_yaml(text)


def test_bytes_that_are_no_text_name_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"name: Gr\xfcn\n")
    with pytest.raises(DocumentError, match="is no UTF-8 text; save it as UTF-8"):
        read_job_file(path)
