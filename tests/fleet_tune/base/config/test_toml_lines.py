from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.config.toml_lines import line_of, line_of_error

TEXT = '''
# device = "in a comment"
title = """
[[device]]
threads = 1
"""

[[device]]
"name" = "a"   # threads = 2
target.kind = "llvm"
values = [

    1,
    2,
]

[[device]]
name = "b"
target = { kind = "cuda", arch = "sm_87" }


[build]
workers = 3
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 3),
        (("device",), 8),
        (("device", 0), 8),
        (("device", 0, "name"), 9),
        (("device", 0, "target"), 10),
        (("device", 0, "target", "kind"), 10),
        (("device", 0, "values"), 11),
        (("device", 0, "values", 1), 11),
        (("device", 1), 17),
        (("device", 1, "target", "arch"), 19),
        (("device", 1, "threads"), 17),
        (("device", 2, "name"), 8),
        (("build", "workers"), 23),
        (("build", "workers", "deeper"), 23),
        (("none",), 1),
        ((), 1),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_line_of_a_value(path: tuple[str | int, ...], line: int, newline: str) -> None:
    assert line_of(TEXT.replace("\n", newline), path) == line


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_every_key_of_a_long_file_is_found(gaps: list[int], data: st.DataObject) -> None:
    """Tables with 0 to 3 lines before each; the line of each header is known from how the text was put together."""
    lines: list[str] = []
    headers = []
    for gap in gaps:
        lines += [data.draw(st.sampled_from(["", "# note", "   "])) for _ in range(gap)]
        lines += ["[[device]]", f"threads = {gap}"]
        headers.append(len(lines) - 1)
    text = "\n".join(lines)
    for index, header in enumerate(headers):
        assert line_of(text, ("device", index, "threads")) == header + 1


def test_the_line_of_a_header_skips_nothing_that_stands_before_it() -> None:
    assert line_of("\n\n# why\n[build]\nworkers = 1\n", ("build",)) == 4


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb = \n", 2), ("a = 1\nb = [1,\n2", 3), ("\n\na = '''\n\n", 3)])
def test_the_line_of_a_syntax_error(text: str, line: int) -> None:
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(text)
    assert line_of_error(caught.value, text) == line
