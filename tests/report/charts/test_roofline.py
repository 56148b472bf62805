"""The roofline's picture: every operator can be found on it."""

import numpy as np
import pytest
from matplotlib.text import Annotation

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.pricing import price
from rapid_des.report.charts.roofline import _dots, marks_of, roofline
from rapid_des.report.pictures.numbered import DOT, LABEL, number_dots, overlaps

JOBS = ["llama2_7b_train", "llama2_7b_inference"]


@pytest.fixture(params=JOBS)
def marks(request):
    return marks_of(price(load_job(request.param), load_machine("dgx_a100")).operators)


def test_every_operator_stands_in_one_row_whose_dot_is_where_the_operator_is(marks):
    dots = _dots(marks)
    assert sorted(mark for dot in dots for mark in dot) == sorted(marks)
    for dot in dots:
        for mark in dot:
            assert mark.rate == pytest.approx(dot[0].rate, rel=0.0205)
            assert mark.intensity == pytest.approx(dot[0].intensity, rel=0.0205)
    (plot,) = roofline(load_machine("dgx_a100").device, marks, {})
    titles = [line for series in plot.series for title in series.titles for line in title.split("\n")]
    assert len(titles) == len(marks) + len(dots)


def test_no_number_covers_another_or_a_dot(marks):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlim=(0.01, 1e4), ylim=(1e10, 1e15))
    places = [(dot[0].intensity, dot[0].rate) for dot in _dots(marks)]
    number_dots(figure, axes, places)
    dots = axes.transData.transform(np.array(places)) * 72 / figure.dpi
    taken = [(x, y, *DOT) for x, y in dots]
    assert len(axes.texts) == len(places)
    for (x, y), text in zip(dots, axes.texts, strict=True):
        assert isinstance(text, Annotation)
        dx, dy = text.xyann
        box = (x + dx, y + dy, *LABEL)
        assert not any(overlaps(box, other) for other in taken)
        taken.append(box)
