"""Digests that runs, caches and evaluations record; another form would make them look changed."""

from mnmt_jax.files.file_digest import FileDigest, short_digest

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1


def test_digests_are_those_of_the_standard(tmp_path):
    (tmp_path / "file").write_text("abc", encoding="utf-8")
    assert FileDigest.of(tmp_path / "file") == FileDigest(3, ABC)
    assert short_digest("abc") == ABC[:16]
