"""Drawings: every kind of fabric can be drawn, deterministically, and what cannot be drawn says why."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from rapid_des.errors import InputError
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.report.pictures.fabric import busy_colours, node_positions, on_circle, picture
from rapid_des.report.pictures.overview import draw, fabric_cells, fabric_rows

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("name", ["torus2d_ring_a100_64", "dgx_a100_x2", "hypercube_a100", "mesh_2d_a100"])
def test_no_two_nodes_stand_on_each_other(name):
    shown = picture(load_machine(name))
    points = node_positions(shown.fabric, on_circle=on_circle(shown))
    assert points.shape == (shown.fabric.nodes, 2)
    assert len(np.unique(points.round(6), axis=0)) == shown.fabric.nodes


def test_a_drawing_marks_dead_derated_and_changing_links(tmp_path):
    texts = ("link=0-1 down=true", "link=1-2 bandwidth=0.5", "link=2-3 down=true until=1ms")
    machine = load_machine("torus_2d_a100", faults=[parse_fault(text) for text in texts])
    shown = picture(machine)
    assert shown.changing == {machine.fabric.link(2, 3), machine.fabric.link(3, 2)}
    draw(shown, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "#d00000" in text.lower()
    assert "#e69f00" in text.lower()


def test_load_colours_the_links_and_the_same_picture_has_the_same_bytes(tmp_path):
    machine = load_machine("dgx_a100_x2")
    shown = picture(machine, load={0: 1.0, 17: 0.25})
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        draw(shown, tmp_path / name)
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_what_can_not_be_drawn_is_one_clear_line(tmp_path):
    shown = picture(load_machine("dgx_a100"))
    with pytest.raises(InputError, match="ends in .png, .svg or .pdf"):
        draw(shown, tmp_path / "a.txt")
    with pytest.raises(InputError, match="cannot be written"):
        draw(shown, Path("/dev/null/a.png"))


def words_of(path):
    return re.findall("<!-- (.*?) -->", path.read_text())


def size_of(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


@pytest.mark.parametrize(
    ("name", "changes", "rows"),
    [
        (
            "dgx_h100_superpod_128",
            (),
            ["16 switches", "32 switches", "1,024 NICs", "1,024 GPUs", "128 switches"]
            + ["nvlink: 1,024 x 450 GB/s, 350 ns", "infiniband: 512 x 100 GB/s, 155 ns"],
        ),
        ("dragonfly_a100_256", (), ["16 switches", "256 GPUs", "nvlink: 384 x 100 GB/s, 700 ns"]),
        ("torus_3d_a100", [("fabric.0.size", "[16, 16, 16]")], ["4,096 GPUs"]),
    ],
)
def test_a_large_fabric_is_drawn_by_tiers_and_servers(name, changes, rows, tmp_path):
    machine = load_machine(name, settings=changes)
    for load in (None, {0: 1.0, len(machine.fabric) - 1: 0.25}):
        shown = picture(machine, load)
        draw(shown, tmp_path / "a.svg")
        assert [row for row in rows if row not in words_of(tmp_path / "a.svg")] == []
        draw(shown, tmp_path / "a.png")
        assert max(size_of(tmp_path / "a.png")) < 2000
        assert (tmp_path / "a.png").stat().st_size < 150_000


def test_an_overview_marks_faults_and_shows_the_load_where_it_is():
    machine = load_machine("dgx_h100_superpod_128", faults=[parse_fault("link=gpu8-nic8 down=true")])
    first = machine.fabric.link(8, machine.fabric.gpus + 8)
    shown = picture(machine, {first + 1: 0.5, 0: 0.25})
    rows = fabric_rows(shown.healthy)
    cells = fabric_cells(shown, rows)
    assert cells.group == 8
    nics = next(index for index, row in enumerate(rows) if "63 GB/s" in row.label)
    assert np.argwhere(cells.faults == 2).tolist() == [[nics, 1]]
    nvlink = next(index for index, row in enumerate(rows) if "450 GB/s" in row.label)
    assert cells.load[nvlink].tolist() == [0.25] + [0.0] * 127


def test_idle_is_light_and_busy_is_dark():
    idle, half, busy = (sum(busy_colours()(share)[:3]) for share in (0.0, 0.5, 1.0))
    assert idle > half > busy
    # a fabric whose busiest link serves an eighth of the time has it dark, not a shade of idle
    assert picture(load_machine("dgx_a100"), {0: 0.125}).most == 0.2


def test_a_hypercube_is_a_map_with_a_colour_for_each_bit(tmp_path):
    machine = load_machine("hypercube_a100", settings=[("fabric.0.size", "32")])
    shown = picture(machine)
    points = node_positions(shown.fabric, on_circle=on_circle(shown))
    ends = points[shown.fabric.destination] - points[shown.fabric.source]
    assert (np.abs(ends) < 1e-9).any(axis=1).all()  # each link runs along a row or a column
    draw(shown, tmp_path / "a.svg")
    assert {f"ids {1 << bit} apart: 75 GB/s" for bit in range(5)} <= set(words_of(tmp_path / "a.svg"))
