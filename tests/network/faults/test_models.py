"""Distributions of faults' numbers, and draws of faults that depend on seed, id and fabric alone."""

from statistics import NormalDist, fmean, stdev

import pytest

from rapid_des.errors import ConfigError, TopologyError
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.network.faults.distributions import distribution
from rapid_des.network.faults.models import ROUND, FaultDraws, Variates, parse_model

GRID = [(index + 0.5) / 1000 for index in range(1000)]


def draws_of(*texts, machine="torus2d_ring_a100_64"):
    loaded = load_machine(machine)
    models = tuple(parse_model(text) for text in texts)
    return FaultDraws(models, loaded.healthy, loaded.spec.gpus_per_node)


@pytest.mark.parametrize(
    ("text", "key", "mean"),
    [
        ("normal(0.5,0.1)", "bandwidth", 0.5),
        ("uniform(0.2,0.8)", "bandwidth", 0.5),
        ("lognormal(2us,0.5)", "latency", 2_000_000 * 2.718281828 ** (0.5**2 / 2)),  # median · exp(σ²/2)
        ("exponential(3us)", "latency", 3_000_000),
        ("weibull(2us,2)", "latency", 2_000_000 * 0.886227),  # scale · Γ(1 + 1/2)
        ("poisson(1.5)", "count", 1.5),
        ("binomial(8,0.25)", "count", 2.0),
        ("choice(0.9:3,0.5:1)", "compute", 0.8),
    ],
)
def test_the_mean_of_many_draws_is_the_distribution_s(text, key, mean):
    found = distribution(text, key)
    values = [found.quantile(place) for place in GRID]
    assert fmean(values) == pytest.approx(mean, rel=0.01)


def test_a_normal_is_cut_off_at_what_the_key_allows():
    found = distribution("normal(0.9,0.3)", "bandwidth")
    values = [found.quantile(place) for place in GRID]
    assert min(values) > 0 and max(values) <= 1
    # the mean of a normal between a and b is mean + deviation · (pdf(a) - pdf(b)) / (cdf(b) - cdf(a))
    normal = NormalDist()
    a, b = (0 - 0.9) / 0.3, (1 - 0.9) / 0.3
    mean = 0.9 + 0.3 * (normal.pdf(a) - normal.pdf(b)) / (normal.cdf(b) - normal.cdf(a))
    assert fmean(values) == pytest.approx(mean, rel=1e-3)


def test_stated_bounds_cut_a_normal_off():
    found = distribution("normal(0.5,0.1,0.45,0.55)", "bandwidth")
    assert (found.at(0.0), found.at(0.5), found.at(1 - 2**-53)) == (0.45, 0.5, 0.55)


def test_the_only_column_of_a_file_may_have_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named.csv").write_text("left\n0.25\n0.5\n")
    (tmp_path / "bare.csv").write_text("0.25\n0.5\n")
    named, bare = (distribution(f"empirical({file}.csv)", "bandwidth").values for file in ("named", "bare"))
    assert named == bare == ((0.25, 0.5), (0.5, 0.5))


def test_an_empirical_distribution_is_a_file_s_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured.csv").write_text("# by hand\nlink,left\na,0.25\nb,0.75\nc,0.75\n")
    found = distribution("empirical(measured.csv,left)", "bandwidth")
    assert found.values == ((0.25, pytest.approx(1 / 3)), (0.75, pytest.approx(2 / 3)))
    with pytest.raises(ConfigError, match="no column 'right'; it has link, left"):
        distribution("empirical(measured.csv,right)", "bandwidth")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("random=links count=1 bandwidth=normal(0.5)", "allowed: normal(mean, deviation[, least, most])"),
        ("random=links count=1 bandwidth=gauss(0.5,0.1)", "allowed: normal, lognormal, uniform"),
        ("random=links count=1 bandwidth=Normal(0.5,0.1)", "allowed: normal, lognormal, uniform"),
        ("random=links count=1 bandwidth=normal(0.5,0)", "the deviation must be above 0"),
        ("random=links count=1 bandwidth=normal(50,0.1)", "almost never between"),
        ("random=links count=1 bandwidth=choice(0.5,1.5)", "1.5 is not allowed"),
        ("random=links count=1 latency=normal(2,1)", "no unit"),
        ("random=links count=1 policy=normal(2,1)", "policy: normal(2,1): not a number to be drawn"),
        ("random=links bandwidth=0.5", "needs count"),
        ("random=links count=0 bandwidth=0.5", "count: 0; allowed: a whole number from 1"),
        ("random=links count=nan bandwidth=0.5", "count: 'nan'; allowed"),
        ("random=links count=1 bandwidth=uniform(-1,0.5)", "67% of it is not between"),
        ("random=racks count=1 bandwidth=0.5", "'racks' is not one of links"),
        ("random=links count=1 seed=3 bandwidth=0.5", "the study's seed"),
        ("random=links count=1 within=racks bandwidth=0.5", "one of nodes, switches, rails, dimensions"),
        ("link=0-1 within=nodes bandwidth=0.5", "allowed, with random"),
        ("random=links count=1", "has no effect"),
    ],
)
def test_nonsense_is_one_line_that_says_what_is_allowed(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_model(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"--fault {text!r}")


def test_a_place_that_is_not_there_is_refused_before_anything_is_drawn():
    with pytest.raises(TopologyError, match="nothing of that kind is there"):
        draws_of("random=switches count=1 bandwidth=0.5")
    with pytest.raises(TopologyError, match="up to 192"):
        draws_of("random=links count=193 bandwidth=0.5")


def test_only_draws_have_distributions():
    with pytest.raises(ConfigError, match="only draws have it, those of faults sample"):
        parse_fault("link=0-1 bandwidth=normal(0.5, 0.1)")


def test_an_id_names_the_same_faults_and_what_it_names_can_be_stated():
    draws = draws_of("random=links count=2 bandwidth=normal(0.5, 0.1) latency=lognormal(2us, 0.5)")
    found = draws.draw(Variates(seed=3, number=17))
    assert found == draws.draw(Variates(seed=3, number=17)) != draws.draw(Variates(seed=3, number=18))
    assert tuple(parse_fault(fault.words) for fault in found) == found  # exact to the last digit


def test_every_link_is_hit_about_as_often():
    draws = draws_of("random=links count=1 bandwidth=0.5")
    hit = [draws.draw(Variates(seed=1, number=number))[0].link for number in range(1920)]
    counts = [hit.count(name) for _, name in draws.parts(0)]
    # ten a link on average; a Poisson count of mean 10 is above 28 once in 10^6
    assert len(counts) == 192 and max(counts) < 29 and fmean(counts) == 10


def test_within_keeps_a_draw_s_parts_in_one_domain():
    draws = draws_of("random=links count=3 within=nodes bandwidth=uniform(0.2,0.9)", machine="dgx_h100_x8")
    for number in range(20):
        faults = draws.draw(Variates(seed=1, number=number))
        links = {str(fault.link).replace("-", ">") for fault in faults}
        assert len(links) == 3 and len({fault.bandwidth for fault in faults}) == 3
        gpus = {int(end[3:]) // 8 for link in links for end in link.split(">") if end[:3] in {"gpu", "nic"}}
        assert len(gpus) == 1  # of one server, and so are its NICs


def test_a_round_of_latin_draws_falls_once_into_every_thirtieth():
    variates = [Variates(seed=5, number=number, sampling="latin") for number in range(ROUND)]
    places = sorted(int(one.uniform(0, "bandwidth") * ROUND) for one in variates)
    assert places == list(range(ROUND))
    other = [one.uniform(0, "place") for one in variates]
    assert stdev(other) == pytest.approx(12**-0.5, rel=0.05)  # of a uniform number


def test_a_drawn_count_of_none_is_a_healthy_machine():
    draws = draws_of("random=links count=poisson(0.5) bandwidth=0.5")
    counts = [len(draws.draw(Variates(seed=1, number=number))) for number in range(1000)]
    assert fmean(counts) == pytest.approx(
        0.5, abs=0.07
    )  # three standard errors of a Poisson count of mean 0.5
    assert 0 in counts


def test_a_rail_is_the_nics_at_one_place_of_every_server():
    machine = load_machine("dgx_h100_x8")
    slow = machine.with_faults([parse_fault("rail=2 bandwidth=0.5")])
    changed = (slow.fabric.bandwidth < machine.fabric.bandwidth).nonzero()[0].tolist()
    ends = {name for link in changed for name in machine.fabric.link_name(link).split(">")}
    assert {name for name in ends if name.startswith("nic")} == {f"nic{8 * node + 2}" for node in range(8)}
