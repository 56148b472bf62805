"""The fault language: the same words in YAML and on the command line, and one clear line for nonsense."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.network.faults import parse_fault


def test_words_state_what_how_and_when():
    fault = parse_fault("link=3>4 bandwidth=0.5 latency='2 us' from=10ms until=20ms")
    assert (fault.link, fault.bandwidth, fault.latency) == ("3>4", 0.5, 2_000_000)
    assert (fault.from_, fault.until, fault.timed) == (10_000_000_000, 20_000_000_000, True)
    assert not parse_fault("gpu=0 down=true").timed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("link=3-4 bandwidth=1.5", "bandwidth: 1.5 is not a number above 0 and up to 1"),
        ("link=3-4 bandwidth=-1", "bandwidth: -1 is not a number above 0"),
        ("link=3-4 bandwidth=0", "bandwidth: 0 is not a number above 0"),
        ("link=3-4 latency=5", "5 is not a quantity"),
        ("link=3-4 bandwith=0.5", "did you mean 'bandwidth'?"),
        ("link=3-4", "has no effect; allowed: bandwidth, latency,"),
        (
            "bandwidth=0.5",
            "exactly one of link, flow, dimension, rail, gpu, nic, switch, node, all, random; it has none",
        ),
        ("gpu=0 switch=1 down=true", "it has gpu, switch"),
        ("link=3-4 bandwidth=0.5 from=20ms until=10ms", "until: 10 ms is not after from 20 ms"),
        ("link=3-4 down=true until_step=0", "until_step: 0 is not after from_step 0"),
        ("link=3-4 bandwidth=0.5 every=1s", "a flap needs both"),
        ("link=3-4 bandwidth=0.5 every=1s for=2s", "for: 2 s is not between 0 and every 1 s"),
        ("link=3-4 down=true from=1s from_step=2", "one kind in one fault"),
        ("random=links count=3 down=true", "needs count and seed"),
        ("link=3-4 down=true count=2", "count: only with random"),
        ("gpu=3 down=true where='id = 3'", "where: only with all or random"),
        ("link=3-4 compute=0.5", "compute: only GPUs and nodes"),
        ("link=3-4 packet_loss=0.01", "needs packet"),
        ("link=3-4 packet_loss=0.01 packet='4 KiB' retransmission=hope", "'hope' is not one of"),
        ("link=3-4 down=true packet='4 KiB'", "only with packet_loss"),
        ("link=3-4 jitter=1us", "needs jitter_every"),
        ("link=3-4 jitter=1us jitter_every=1ms", "needs seed"),
        ("link=3-4 load=1", "load: 1 is not a number above 0 and below 1"),
        ("link=3-4 load=0.3 burst=1ms seed=1", "burst: needs peak"),
        ("link=3-4 load=0.3 burst=1ms peak=0.2 seed=1", "peak: 0.2 is below the mean load 0.3"),
        ("link=3-4 load=0.3 peak=0.5", "peak: only with burst"),
        ("link=3-4 load=0.3 burst=0s peak=0.5 seed=1", "burst: must be above 0 s"),
        ("link=3-4 down=true policy=reroute", "needs detection"),
        ("link=3-4 down=true detection=1ms", "only with the policies"),
        ("link=3-4 packet_loss=0.1 bit_error_rate=0.1", "one of them"),
        ("link=3-4 packet_loss=0.1 packet='0 B' retransmission=go_back_n", "packet: must be above 0 B"),
        (
            "link=0-1 bit_error_rate=0.9 packet='4 KiB' retransmission=go_back_n",
            "loses every packet of 4 KiB",
        ),
        (
            "link=0-1 packet_loss=0.9999999999999 packet='4 KiB' retransmission=go_back_n",
            "packet_loss: 0.9999999999999 loses every packet of 4 KiB",
        ),
        ("gpu=3 down=true seed=4", "seed: only with"),
        ("link=3-4 down=true bandwidth=0.5", "down: leaves nothing for bandwidth to change"),
        ("all=planets down=true", "'planets' is not one of"),
        ("gpu=3 gpu=4 down=true", "stands twice"),
        ("gpu=3 speed=0.8 hbm=0.5", "leave out speed or hbm"),
        ("gpu", "is not key=value"),
        ("gpu='3", "not words"),
    ],
)
def test_nonsense_is_one_line_that_says_what_is_allowed(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_fault(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
