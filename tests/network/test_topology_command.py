"""`rapid-des topology show|route|check`."""

import json

import pytest
from click.testing import CliRunner

from rapid_des.cli.topology import topology
from rapid_des.errors import ConfigError, FabricCutError, TopologyError


def run(*words):
    result = CliRunner().invoke(topology, [*words], catch_exceptions=False, standalone_mode=False)
    return result.output


def test_show_prints_counts_degree_diameter_and_bisection():
    # 4x4x4 torus: 64·6 links, 3·2 hops across, 2·16 links of 50 GB/s through the middle, one way.
    text = run("show", "torus_3d_a100")
    for line in (
        "64 GPUs, 0 NICs, 0 switches",
        "384 directed",
        "6 links out",
        "6 hops",
        "bisection        1.6 TB/s",
    ):
        assert line in text
    figures = json.loads(run("show", "torus_3d_a100", "--json"))
    assert (figures["gpus"], figures["diameter"]["hops"], figures["bisection"]["bandwidth"]) == (
        64,
        6,
        1.6e12,
    )


def test_show_counts_dead_links_and_states_bounds_as_such():
    text = run("show", "dgx_a100_x2", "--fault", "switch=0 down=true")
    assert "96 directed, 16 of them dead" in text
    assert "at most" in text


def test_route_lists_links_with_coordinates():
    text = run("route", "torus_3d_a100", "0", "(2, 0, 1)")
    assert "3 hops, 2.1 us of latency, 50 GB/s at the narrowest" in text
    # balanced ties: an even source that goes on to a line an odd number away turns down
    assert "gpu3 (3, 0, 0) > gpu2 (2, 0, 0)" in text
    tree = json.loads(run("route", "torus_3d_a100", "0", "(2, 0, 1)", "--json"))
    assert [hop["to"]["name"] for hop in tree["hops"]] == ["gpu3", "gpu2", "gpu18"]
    assert "no hops" in run("route", "torus_3d_a100", "5", "5")


def test_a_check_of_a_large_torus_still_finds_its_rings():
    text = run("check", "torus_2d_a100", "--set", "machine.fabric.0.size=[32, 32]")
    assert "circle of 32" in text
    assert "between some of the GPUs" in text


def test_show_draws_what_is_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    run("show", "dgx_a100", "--plot", str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_fault_on_the_command_line_changes_the_route():
    assert "gpu0 (0, 0, 0) > gpu3" in run("route", "torus_3d_a100", "0", "2", "--fault", "link=0-1 down=true")


def test_check_reports_circles_of_waiting_links_and_holes():
    assert "circle of 4" in run("check", "torus_2d_a100", "--set", "machine.fabric.0.size=[4, 4]")
    assert "none can wait in a circle" in run("check", "mesh_2d_a100")
    text = run("check", "torus_2d_a100", "--fault", "gpu=9 down=true")
    assert "lost             gpu9" in text
    assert "every GPU reaches every other" in text


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (("route", "dgx_a100", "0", "8"), TopologyError, "there is no gpu 8; allowed: gpu0 to gpu7"),
        (("route", "dgx_a100", "0", "switch0"), TopologyError, "is no GPU"),
        (("show", "dgx_a10"), ConfigError, "did you mean 'dgx_a100'?"),
        (("show", "dgx_a100", "--set", "fabric=3"), ConfigError, "fabric: 3 is not a list"),
        (("show", "dgx_a100", "--set", "device.sm=3"), ConfigError, "did you mean 'sms'?"),
        (
            ("check", "dgx_a100", "--fault", "link=gpu0>switch0 down=true"),
            FabricCutError,
            "gpu0 cannot reach gpu1",
        ),
    ],
)
def test_what_can_not_be_is_an_error_of_one_line(words, error, says):
    with pytest.raises(error) as caught:
        run(*words)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "shown", "hops"),
    [
        # 50 routers of 7 links (Hoffman-Singleton) and 4 endpoints; behind NICs two hops more at both ends.
        ("slim_fly_a100_200", ["200 GPUs, 200 NICs, 50 switches", "1,150"], "6 hops"),
        # 16 routers of 6 links, 2 cables each; half of 64 x 25 GB/s across the middle.
        ("hyperx_a100_128", ["128 GPUs, 128 NICs, 16 switches", "800 GB/s"], "6 hops"),
        # 4 groups of 4 + 4 switches with 4 cables between any two: 2 x 2 x 4 across the middle.
        ("dragonfly_plus_a100_128", ["128 GPUs, 128 NICs, 32 switches", "400 GB/s"], "7 hops"),
        ("tpu_v4_twisted_128", ["128 GPUs, 0 NICs, 0 switches", "3.2 TB/s"], "6 hops"),
        ("gb200_nvl72_x8", ["576 GPUs, 576 NICs, 80 switches", "14.4 TB/s"], "6 hops"),
    ],
)
def test_fabrics_of_the_literature_are_shown_checked_routed_and_timed(machine, shown, hops):
    text = run("show", machine)
    assert all(words in text for words in [*shown, hops])
    assert "every GPU reaches every other" in run("check", machine)
    assert "hops" in run("route", machine, "0", "77")
    assert len(run("bench", machine, "--sizes", "1MiB", "--gpus", "16").splitlines()) > 2
    some = "bench", machine, "--op", "all_to_all", "--algorithm", "direct", "--gpus", "12", "--sizes", "64KiB"
    slow = "--fault", "link=#3 bandwidth=0.1 from=3us until=20us"
    assert run(*some, *slow, "--engine", "simpy") == run(*some, *slow, "--engine", "compiled")
    assert "hops" in run("route", machine, "0", "77", "--fault", "link=#0 down=true")


def test_two_planes_are_shown_as_one_of_twice_the_rate():
    assert "28.8 TB/s" in run("show", "gb300_nvl72_x8")


def test_half_of_the_pairs_of_a_dragonfly_plus_go_over_a_third_group():
    def hops(gpu, *words):
        return len(run("route", "dragonfly_plus_a100_128", "0", str(gpu), *words).splitlines())

    minimal = "--set", "machine.routing.non_minimal=null"
    longer = sum(hops(gpu) > hops(gpu, *minimal) for gpu in range(32, 128, 8))
    assert 2 <= longer <= 10
