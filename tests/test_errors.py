"""The exception tree: which exit code each error has, and that its picture is true."""

import pytest

from rapid_des import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InputError, 2),
        (errors.ConfigError, 2),
        (errors.TraceError, 2),
        (errors.TopologyError, 2),
        (errors.UnsupportedByEngine, 2),
        (errors.CannotFinishError, 3),
        (errors.DeadlockError, 3),
        (errors.FabricCutError, 3),
        (errors.InfeasibleJobError, 4),
    ],
)
def test_every_error_has_its_exit_code(kind, code):
    assert kind("x").exit_code == code
    assert issubclass(kind, errors.RapidDesError)


def test_the_picture_names_every_error():
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert [kind.__name__ for kind in kinds if kind.__name__ not in (errors.__doc__ or "")] == []


def test_a_config_error_names_file_and_key():
    error = errors.ConfigError("is wrong", file="m.yaml", key="fabric[0].size")
    assert str(error) == "m.yaml: fabric[0].size: is wrong"
    assert (error.file, error.key) == ("m.yaml", "fabric[0].size")
    assert str(errors.ConfigError("is wrong")) == "is wrong"
