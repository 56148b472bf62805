"""`rapid-des validate` without a checkout says where it is."""

from tests.cli.shell import call


def test_an_installed_package_says_where_validation_is(tmp_path, monkeypatch):
    # A package of that name in the current folder is not run: it may be anybody's.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "__init__.py").write_text("raise SystemExit('foreign code ran')")
    monkeypatch.setattr("rapid_des.cli.validate.ROOT", tmp_path / "site-packages")
    answer = call("validate", "operators/gemm")
    assert answer.code == 2
    assert answer.err == (
        "error: validate is part of the repository, with its measurements, and not of the installed package: "
        "run `python cli.py validate` in a checkout of rapid_des\n"
    )
