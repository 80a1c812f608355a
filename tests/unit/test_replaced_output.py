"""A file of text that `translate`, `sample` or `score` replaces is named on standard error."""

import pytest

from mnmt_jax.commands.text_files import open_output


@pytest.mark.parametrize("before,is_named", [("old\n", True), ("", False), (None, False)])
def test_a_replaced_file_is_named(before, is_named, tmp_path, capsys):
    path = tmp_path / "out"
    if before is not None:
        path.write_text(before, encoding="utf-8")
    with open_output(str(path)) as file:
        file.write("new\n")
    line = f"--output={path}: replaces the existing file\n"
    assert capsys.readouterr().err == (line if is_named else "")
    assert path.read_text(encoding="utf-8") == "new\n"
