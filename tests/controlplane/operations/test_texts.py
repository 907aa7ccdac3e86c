"""The list of texts has what people read, and leaves out documentation and names."""

from pathlib import Path

from controlplane.operations.texts import Text, texts

MODULE = '''"""Documentation of the module."""

NAME = "a_name"

def check(count: int) -> None:
    """Documentation of the function."""
    raise ValueError(f"give {count} nodes or "
                     "fewer than that")
'''

PAGE = """{% load x %}{# a remark
of two lines #}<h1 title="All jobs">Queue</h1>
<script>var text = "not a text";</script>
<p>{% if a %}Nothing runs
here{% endif %}</p>
"""


def test_messages_stand_with_their_expressions(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "checks.py").write_text(MODULE)
    assert texts(tmp_path) == [Text("jobs/checks.py", 7, "give {count} nodes or fewer than that")]


def test_pages_stand_with_shown_attributes_and_without_code(tmp_path: Path) -> None:
    (tmp_path / "templates" / "jobs").mkdir(parents=True)
    (tmp_path / "templates" / "jobs" / "queue.html").write_text(PAGE)
    assert texts(tmp_path) == [
        Text("templates/jobs/queue.html", 2, "All jobs"),
        Text("templates/jobs/queue.html", 2, "Queue"),
        Text("templates/jobs/queue.html", 4, "Nothing runs here"),
    ]
