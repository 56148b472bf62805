"""Drawings: every kind of fabric can be drawn, deterministically, and what can not be drawn says why."""

import numpy as np
import pytest

from rapid_des.errors import InputError, TopologyError
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.report.pictures.fabric import draw, node_positions, on_circle, picture

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
    with pytest.raises(InputError, match="can not be written"):
        draw(shown, tmp_path / "no" / "a.png")
    big = load_machine("torus_3d_a100", settings=[("fabric.0.size", "[32, 32, 32]")])
    with pytest.raises(TopologyError, match="196608 links; drawn are up to 40000"):
        draw(picture(big), tmp_path / "a.png")
