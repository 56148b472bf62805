"""A server under costs that theory knows: queues, Little's law, conservation, determinism."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.serving.drafts import Drafts
from rapid_des.serving.engine import Engine
from rapid_des.serving.fleet import Fleet
from rapid_des.serving.policies import POLICIES, Habits
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS
from rapid_des.serving.slo import Slo
from rapid_des.serving.workload import Marks, Workload, draw, parse_arrivals, parse_lengths

SERVICE = 10**9
"""A millisecond."""


class Affine:
    """An iteration takes a base, so much a prompt token, and so much a position that decoding sees."""

    def __init__(self, base=SERVICE, token=0, key=0):
        self.base, self.token, self.key = base, token, key

    def time(self, batch):
        prompts = sum(chunk.query_length for chunk in batch.chunks)
        return self.base + self.token * prompts + self.key * batch.keys

    def ends(self, decodes, keys):
        return np.cumsum(self.base + self.key * keys)


FLEET = (
    "replicas",
    "prompting",
    "transfer",
    "outages",
    "autoscaler",
    "startup",
    "takes",
    "beside",
    "classes",
)
"""What `served` gives to the fleet; all else is of its engine."""


def served(arrivals, count, prompt="1", output="1", seed=1, policy="vllm_v1", router="round_robin", **rest):
    fleet_keys = {name: rest.pop(name) for name in FLEET if name in rest}
    made: dict[str, Any] = {
        "costs": Affine(),
        "pages": 10**6,
        "page_size": 16,
        "max_batched_tokens": 8192,
        "max_sequences": 256,
    } | rest
    work = arrivals
    if isinstance(arrivals, str):
        lengths = parse_lengths(prompt, "p"), parse_lengths(output, "o")
        work = draw(parse_arrivals(arrivals), lengths, count, seed)
    fleet = Fleet(Engine(policy=POLICIES[policy], **made), work, ROUTERS.get(router, joint), **fleet_keys)
    assert fleet.run()
    return fleet, ServeResult.of(fleet, name="test", gpus=1)


def after(milliseconds):
    """Return transfers that take so long, whatever they carry."""
    return lambda env, *_: env.timeout(milliseconds * SERVICE)


def joint(replicas, request):
    """Send a request where least is to do, as one queue for all would."""
    return min(replicas, key=lambda replica: (replica.outstanding_tokens, replica.number))


def test_single_requests_of_one_iteration_wait_as_in_an_m_d_1_queue():
    # rho = 0.8: the mean wait of M/D/1 is rho / (2 (1 - rho)) services = 2 (Pollaczek and Khinchine)
    _, result = served("poisson rate=800/s", 15_000, max_sequences=1)
    assert result.queue.mean() / SERVICE == pytest.approx(2, rel=0.08)


def test_batches_take_in_who_comes_meanwhile():
    # all who wait are in the next iteration: nobody waits for more than the one that runs
    _, result = served("poisson rate=3000/s", 8_000)
    assert result.queue.max() <= SERVICE
    assert result.queue.mean() / SERVICE == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [10**6, 60])
def test_steps_that_pass_at_once_are_those_that_are_waited_for(pages, policy):
    outcomes = []
    for stepwise in (False, True):
        costs = Affine(token=10**6, key=10**4)
        fleet, result = served(
            "poisson rate=20/s",
            150,
            "lognormal mean=200 cv=0.7 most=500",
            "lognormal mean=60 cv=1 most=400",
            costs=costs,
            policy=policy,
            pages=pages,
            stepwise=stepwise,
        )
        outcomes.append({name: column.tolist() for name, column in result.requests.items()})
        outcomes[-1]["gaps"] = result.gaps.tolist()
        outcomes[-1]["held"] = held_over_time(result)
        outcomes[-1]["occupancy"] = [round(share, 12) for share in result.kv_occupancy.values()]
    assert outcomes[0] == outcomes[1]
    evicts = policy != "trtllm_guaranteed_no_evict"
    assert (sum(outcomes[0]["preemptions"]) > 0) == (pages == 60 and evicts)


def held_over_time(result):
    """Return when how many requests wait and run and how many pages are held: equal rows are put together."""
    rows = result.loads[0]
    spans: list[list[Any]] = []
    for began, duration, *sizes in zip(
        *(rows[name].tolist() for name in ("began", "duration", "waiting", "running", "pages")), strict=True
    ):
        if spans and spans[-1][1:] == [began, sizes]:
            spans[-1][1] += duration
        else:
            spans.append([began, began + duration, sizes])
    return spans


HABITS = [{"receive_interval": 7}, {"ahead": True}, {"receive_interval": 7, "ahead": True},
          {"wait_iterations": 9, "wait_tokens": 900.0}]  # fmt: skip


@pytest.mark.parametrize("habits", HABITS)
@pytest.mark.parametrize("policy", ["vllm_v1", "sglang"])
def test_steps_that_pass_at_once_are_those_that_are_waited_for_whatever_an_engine_s_habits(policy, habits):
    both = [
        served("poisson rate=20/s", 200, "uniform low=100 high=300", "uniform low=2 high=90", policy=policy,
               costs=Affine(token=10**6, key=10**4), stepwise=stepwise, habits=Habits(**habits))[1].requests
        for stepwise in (False, True)
    ]  # fmt: skip
    assert all((both[0][name] == both[1][name]).all() for name in both[0])


def first_tokens(arrivals_ms, outputs, **habits):
    """Return when requests of one-token prompts have their first tokens, in iterations of a millisecond."""
    _, result = served(from_columns(arrivals_ms, [1] * len(outputs), outputs), 0, habits=Habits(**habits))
    return (result.requests["arrival"] + result.ttft).tolist()


def test_an_engine_that_plans_ahead_takes_in_who_comes_an_iteration_later():
    # the first decodes; the second comes during iteration 3 and is in the fourth, or in the fifth
    late = [0, 2.5]
    assert first_tokens(late, [20, 5]) == [SERVICE, 4 * SERVICE]
    assert first_tokens(late, [20, 5], ahead=True) == [SERVICE, 5 * SERVICE]


def test_an_engine_that_looks_every_ten_decode_steps_sees_requests_then_and_at_once_when_idle():
    # decode steps are iterations 2 to 20: those who come during them are seen after the eleventh
    assert first_tokens([0, 2.5, 5.5], [20, 3, 3], receive_interval=10) == [
        SERVICE,
        12 * SERVICE,
        12 * SERVICE,
    ]
    assert first_tokens([0, 30.5], [20, 3], receive_interval=10)[1] == 31.5 * SERVICE


def test_prompts_wait_for_others_while_requests_decode_until_they_are_enough_or_too_late():
    held = {"wait_iterations": 5, "wait_tokens": 4.0}
    assert first_tokens([0, 2.5], [20, 3], **held)[1] == 9 * SERVICE  # five more iterations than the fourth
    assert (
        first_tokens([0, 2.5, 4.5, 4.6], [20, 3, 3, 3], **held)[1] == 6 * SERVICE
    )  # one decode, three prompts
    assert first_tokens([0, 30.5], [20, 3], **held)[1] == 31.5 * SERVICE


def test_one_front_end_takes_requests_one_after_the_other():
    # eight clients at once, 2 ms each and 0.1 ms a prompt token: they arrive 3 ms apart
    engine = Engine(policy=POLICIES["vllm_v1"], costs=Affine(base=1), pages=10**6, page_size=16,
                    max_batched_tokens=8192, max_sequences=256)  # fmt: skip
    work = draw(parse_arrivals("clients count=8"), (parse_lengths("10", "p"), parse_lengths("1", "o")), 8, 1)
    fleet = Fleet(engine, work, ROUTERS["round_robin"], client=2 * SERVICE, tokenizing=SERVICE // 10)
    assert fleet.run()
    ttft = ServeResult.of(fleet, name="test", gpus=1).ttft
    assert sorted(ttft) == pytest.approx([3 * SERVICE * place for place in range(1, 9)], rel=1e-6)
    far = Fleet(engine, work, ROUTERS["round_robin"], client=2 * SERVICE, latency=5 * SERVICE)
    assert far.run()
    ttft = ServeResult.of(far, name="test", gpus=1).ttft  # nobody waits for another's 5 ms
    assert sorted(ttft) == pytest.approx([(5 + 2 * place) * SERVICE for place in range(1, 9)], rel=1e-6)


@pytest.mark.parametrize(("front_ends", "waits_ms"), [(0, [0, 0, 2, 2]), (1, [0, 2, 4, 6]), (4, [0] * 4)])
def test_each_replica_has_a_front_end_unless_their_number_is_stated(front_ends, waits_ms):
    # four requests at once to two replicas, 2 ms each at a front end
    engine = Engine(policy=POLICIES["vllm_v1"], costs=Affine(base=1), pages=10**6, page_size=16,
                    max_batched_tokens=8192, max_sequences=256)  # fmt: skip
    work = from_columns([0] * 4, [10] * 4, [1] * 4)
    fleet = Fleet(engine, work, ROUTERS["round_robin"], replicas=2, client=2 * SERVICE, front_ends=front_ends)
    assert fleet.run()
    requests = ServeResult.of(fleet, name="test", gpus=2).requests
    assert sorted(requests["front_end_queue"]) == [wait * SERVICE for wait in waits_ms]
    at_front_ends = requests["received"] - requests["arrival"] - requests["front_end_queue"]
    assert set(at_front_ends) == {2 * SERVICE}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [10**6, 60])
def test_tokens_and_pages_are_conserved(pages, policy):
    fleet, result = served(
        "poisson rate=20/s",
        300,
        "lognormal mean=200 cv=0.7 most=500",
        "lognormal mean=60 cv=1 most=400",
        pages=pages,
        policy=policy,
        costs=Affine(token=10**6),
    )
    (replica,) = fleet.members
    assert replica.sizes == (0, 0, 0)  # nobody waits or runs, no page is held
    out = result.requests["output"]
    load = result.loads[0]
    # of each request the first token comes from its prompt, the others from decode steps, or from a prompt
    # that was computed again
    again = int(result.requests["preemptions"].sum())
    assert out.sum() - len(out) - again <= (load["decodes"] * load["steps"]).sum() <= out.sum() - len(out)
    assert (load["prompt_tokens"].sum() == result.requests["prompt"].sum()) == (again == 0)
    assert load["pages"].max() <= pages


@pytest.mark.parametrize("pages", [20, 23, 30, 41])
@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_are_swapped_out_and_in_all_come_to_their_ends(pages, policy):
    lengths = "uniform low=1 high=120", "uniform low=1 high=120"
    fleet, result = served("clients count=16", 60, *lengths, pages=pages, policy=policy, swap=10**5)
    assert len(result) == 60
    assert fleet.members[0].sizes == (0, 0, 0)
    assert result.loads[0]["pages"].max() <= pages


def test_the_steady_rate_leaves_out_the_start_and_the_drain():
    # 100 requests/s for 4 s, whose answers take 2 s each: the last 2 s only drain
    _, result = served("constant rate=100/s", 400, output="2000", max_sequences=10**4)
    plain = result.as_json(Slo.parse("e2e=1h"))
    assert plain["throughput"]["requests_per_s"] == pytest.approx(100 * 4 / 6, rel=0.01)
    assert plain["steady_requests_per_s"] == plain["goodput"]["steady_requests_per_s"]
    assert plain["steady_requests_per_s"] == pytest.approx(100, rel=0.01)
    assert plain["steady_output_tokens_per_s"] == pytest.approx(200_000, rel=0.01)
    # a server that is offered twice of what it takes answers what it takes
    _, result = served("poisson rate=2000/s", 2000, max_sequences=1)
    low, high = result.as_json()["throughput_interval"]
    assert result.steady.rate() == pytest.approx(1000, rel=0.01) and low <= 1000 <= high < 1.05 * low
    _, result = served("poisson rate=2000/s", 20)
    assert result.as_json()["steady_requests_per_s"] is None


def test_clients_of_a_closed_loop_have_one_request_each():
    # eight clients, ten iterations an answer: all in step, 8 answers each 10 ms
    _, result = served("clients count=8", 800, output="10")
    assert result.throughput["requests_per_s"] == pytest.approx(800)


def test_clients_that_think_send_as_many_requests_as_there_are():
    # a request takes 1 ms, a thought 9: eight clients have 8 answers each 10 ms
    _, result = served("clients count=8 think=9ms", 804)
    assert len(result) == 804
    assert result.throughput["requests_per_s"] == pytest.approx(800, rel=0.01)


def test_equal_seeds_give_equal_results_and_more_requests_leave_the_first():
    few, more, other = (
        served("gamma rate=50/s cv=2", count, "uniform low=10 high=90", seed=seed)[1].requests
        for count, seed in ((50, 1), (80, 1), (50, 2))
    )
    assert all((few[name] == more[name][:50]).all() for name in few)
    assert not (few["arrival"] == other["arrival"]).all()


def from_columns(arrival_ms, prompt, output, **marks):
    columns = [np.array(column, np.int64) for column in (prompt, output)]
    marks = {name: np.array(column, np.int64) for name, column in marks.items()}
    return Workload(columns[0], columns[1], (np.array(arrival_ms) * SERVICE).astype(np.int64), marks=marks)


def test_servers_with_exponential_work_wait_as_in_m_m_c():
    # two replicas that take one request each and one queue (least outstanding work): rho = 0.5, M/M/2 waits
    # C / (2 mu - lambda) with Erlang's C = 2 rho^2 / (1 + rho) = 0.3333: 0.3333 / 1 = 0.333 services.
    # An iteration a token: geometric outputs of 50 tokens are exponential but for their steps.
    random, count = np.random.default_rng(1), 6_000
    output = random.geometric(1 / 50, count)
    arrival = np.cumsum(random.exponential(50 / 1.0, count)).astype(np.int64)
    work = from_columns(arrival, np.ones(count), output)
    _, result = served(work, 0, replicas=2, max_sequences=1, router="joint")
    assert result.queue.mean() / (50 * SERVICE) == pytest.approx(0.333, rel=0.12)


def test_requests_that_share_a_bandwidth_bound_server_are_shared_alike():
    # a step takes as long as there are requests in it: every request gets 1/n of the server (processor
    # sharing), so the mean time in M/G/1-PS is x / (1 - rho) for a request of x steps
    random = np.random.default_rng(2)
    output = random.choice([20, 100], 4_000, p=[0.8, 0.2])  # 36 steps on average
    arrival = np.cumsum(random.exponential(36 / 0.5, 4_000)).astype(np.int64)
    work = from_columns(arrival, np.ones(4_000), output)
    _, result = served(work, 0, costs=PerRequest(), max_sequences=10**4)
    for steps in (20, 100):
        time = result.e2e[result.requests["output"] == steps].mean() / SERVICE
        assert time == pytest.approx(steps / (1 - 0.5), rel=0.1)


class PerRequest:
    """An iteration takes a millisecond a request in it."""

    def time(self, batch):
        return SERVICE * (batch.decodes + len(batch.chunks))

    def ends(self, decodes, keys):
        return SERVICE * decodes * np.arange(1, len(keys) + 1)


def test_more_replicas_make_no_mean_worse():
    # the same requests at the same times: with each doubling they wait and share less
    runs = (
        served("poisson rate=900/s", 400, max_sequences=4, output="3", replicas=n, router="least_requests")
        for n in (1, 2, 4, 8)
    )
    means = [(result.queue.mean(), result.e2e.mean()) for _, result in runs]
    assert all(then[0] <= first[0] and then[1] <= first[1] for first, then in pairwise(means))


def test_more_important_requests_are_taken_first():
    work = from_columns([0, 1, 1, 1], [1] * 4, [9] * 4, priority=[0, 0, 5, 1])
    _, result = served(work, 0, max_sequences=1, order="priority")
    assert np.argsort(result.requests["started"]).tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize("policy", ["vllm_v1", "trtllm_max_utilization"])
def test_the_least_important_request_makes_room_whoever_came_last(policy):
    # both answers take 4 pages of 16 tokens, 6 are there: the second came last and matters more
    work = from_columns([0, 1], [20, 20], [40, 40], priority=[0, 5])
    _, result = served(work, 0, pages=6, order="priority", policy=policy)
    assert result.requests["preemptions"].tolist() == [1, 0]
    _, result = served(work, 0, pages=6, policy=policy)
    assert result.requests["preemptions"].tolist() == [0, 1]


def test_the_router_by_free_pages_has_the_name_of_what_it_does():
    with pytest.raises(ConfigError, match="serving.router: 'kv_aware' is not .*most_free_pages"):
        load_job("llama3_1_70b_serve", settings={"serving.router": "kv_aware"})
    assert "most_free_pages" in ROUTERS


def test_a_user_who_asks_much_does_not_starve_one_who_asks_little():
    # user 0 has 200 requests at once, user 1 one each 100 ms, an answer takes 10 ms: first come first served
    # makes user 1 wait for all 200, fair ones for the one that runs
    arrival = [0] * 200 + [100 * number + 5 for number in range(10)]
    users = [0] * 200 + [1] * 10
    waits = {}
    for order in ("fcfs", "fair"):
        work = from_columns(
            sorted(arrival),
            [1] * 210,
            [10] * 210,
            user=[users[i] for i in np.argsort(arrival, kind="stable")],
        )
        _, result = served(work, 0, max_sequences=1, order=order)
        of_second = work.marks["user"] == 1
        waits[order] = result.queue[of_second].max() / SERVICE
    assert waits["fcfs"] > 1000 and waits["fair"] <= 10


def test_stated_prefixes_are_not_computed():
    costs = Affine(base=0, token=SERVICE)
    work = from_columns([0], [100], [1], prefix=[64])
    _, result = served(work, 0, costs=costs)
    assert result.ttft[0] == 36 * SERVICE


def test_a_shared_prefix_takes_its_pages_once():
    # of 80 tokens four pages of 16 are shared, one is each request's: ten fit into 14 pages at once
    work = from_columns([0] * 10, [80] * 10, [1] * 10, prefix=[64] * 10)
    fleet, result = served(work, 0, pages=14)
    assert set(result.ttft) == {SERVICE}
    assert result.loads[0]["pages"].max() == 14 and fleet.members[0].sizes == (0, 0, 0)


@pytest.mark.parametrize("rest", [{"swap": 10**5}, {"pages": 10**6}, {"drafts": Drafts((0.8, 0.5), 1)}, {}])
@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_share_parts_of_a_prefix_give_all_pages_back(policy, rest):
    random = np.random.default_rng(3)
    marks = {"prefix": random.integers(0, 90, 80), "session": random.integers(0, 9, 80)}
    work = from_columns(np.arange(80) * 5, random.integers(1, 200, 80), random.integers(1, 90, 80), **marks)
    outcomes = []
    for stepwise in (False, True):
        keys = {"pages": 40, "policy": policy, "costs": Affine(token=10**6), "stepwise": stepwise} | rest
        fleet, result = served(work, 0, **keys)
        assert fleet.members[0].sizes[:2] == (0, 0) and fleet.members[0].shared_pages == 0
        assert fleet.members[0].free_pages == keys["pages"] >= result.loads[0]["pages"].max()
        outcomes.append(result.requests["finished"].tolist())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("arrivals", ["poisson rate=200/s", "clients count=12"])
def test_a_turn_is_sent_after_the_answer_before_it_and_repeats_what_was_said(arrivals):
    marks = Marks(sessions=10, think=3 * SERVICE, most=4000)
    lengths = parse_lengths("uniform low=5 high=90", "p"), parse_lengths("uniform low=5 high=90", "o")
    work = draw(parse_arrivals(arrivals), lengths, 95, 1, marks)
    fleet, result = served(work, 0, costs=Affine(token=10**6))
    columns, session = result.requests, work.marks["session"]
    assert len(result) == 95 and fleet.members[0].sizes == (0, 0, 0) and result.turns_waited > 40
    for each in set(session):
        turns = {name: column[session == each] for name, column in columns.items()}
        assert (turns["arrival"][1:] - turns["finished"][:-1] >= 3 * SERVICE).all()
        new = np.diff(turns["prompt"], prepend=0)[1:] - turns["output"][:-1]
        assert ((new >= 5) & (new <= 90)).all()


def test_sessions_go_on_from_what_their_replica_still_holds():
    costs = Affine(base=0, token=SERVICE)
    # 80 + 9 tokens of the first answer's 90 are stored: five whole pages of 16 are there for the second
    work = from_columns([0, 10_000], [80, 200], [10, 1], session=[3, 3])
    _, result = served(work, 0, costs=costs)
    assert result.ttft[1] == (200 - 80) * SERVICE
    # another session needs the pages in between: 200 tokens are 13 pages, of 15 two are left for the 6
    work = from_columns([0, 10_000, 20_000], [80, 200, 200], [10, 1, 1], session=[3, 4, 3])
    _, result = served(work, 0, costs=costs, pages=15)
    assert result.ttft[2] == 200 * SERVICE


def test_swapped_requests_lose_no_work():
    work = from_columns([0] * 8, [60] * 8, [60] * 8)
    tokens = {}
    for swap in (0, 10**5):
        fleet, result = served(work, 0, pages=40, swap=swap)
        assert result.requests["preemptions"].sum() > 0
        assert fleet.members[0].sizes == (0, 0, 0)
        tokens[swap] = result.loads[0]["prompt_tokens"].sum()
    assert tokens[10**5] == 8 * 60 < tokens[0]


def test_prompts_and_answers_on_replicas_of_their_own():
    # one prompt in 50 ms every 100 ms; keys and values travel for 7 ms; steps take 1 ms
    costs = Affine(base=SERVICE, token=SERVICE // 2)
    work = from_columns([100 * number for number in range(20)], [98] * 20, [11] * 20)
    fleet, result = served(work, 0, costs=costs, replicas=2, prompting=1, transfer=after(7))
    assert set((result.ttft / SERVICE).tolist()) == {50}
    assert set((result.e2e / SERVICE).tolist()) == {50 + 7 + 10}
    assert [int(load["prompt_tokens"].sum()) for load in result.loads] == [20 * 98, 0]
    assert [member.sizes for member in fleet.members] == [(0, 0, 0)] * 2


@pytest.mark.parametrize("router", ROUTERS)
def test_routers_see_the_same_whether_steps_pass_at_once_or_not(router):
    outcomes = []
    for stepwise in (False, True):
        _, result = served(
            "poisson rate=60/s",
            100,
            "lognormal mean=200 cv=0.7 most=500",
            "lognormal mean=60 cv=1 most=400",
            costs=Affine(token=10**6, key=10**4),
            replicas=3,
            router=router,
            stepwise=stepwise,
        )
        outcomes.append(result.requests["finished"].tolist())
    assert outcomes[0] == outcomes[1]
