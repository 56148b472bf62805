"""`rapid-des ui`: who may ask, what may be asked, and what the page shows in a browser."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra ui is not installed")

from rapid_des.cli.ui import answers, server, tasks, words  # noqa: E402
from rapid_des.cli.ui.command import _listening  # noqa: E402
from rapid_des.errors import InputError  # noqa: E402
from rapid_des.frontend import load_job  # noqa: E402
from rapid_des.machine import load_machine  # noqa: E402
from rapid_des.simulation import simulate  # noqa: E402
from tests.browser import browser, violations  # noqa: E402, F401
from tests.cli.shell import call  # noqa: E402

TOKEN = "a-token"
JOB = {"job": "llama2_7b_train", "machine": "dgx_a100", "settings": ["job.model.layers=2"]}
SHORT = ("llama2_7b_train", "--on", "dgx_a100", "--set=job.model.layers=2")


class Here:
    """A worker in the test's process: commands wait for a word of the test, questions do not."""

    go = threading.Event()
    one = threading.Lock()  # as in a process of its own, one thing is done at a time

    def submit(self, function, *arguments):
        future: Future[Any] = Future()
        if function.__name__ == "begin":
            return future

        def work():
            if function.__name__ == "execute":
                self.go.wait(30)
            try:
                with self.one:
                    future.set_result(function(*arguments))
            except OSError as error:  # the folder of work that was cancelled
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def close(self):
        pass

    release = close


class Asking:
    """A page that is served in a thread."""

    def __init__(self, folder):
        self.page = server.Page(folder, 1)
        self.listener = _listening(0)
        self.port = self.listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/{TOKEN}/"
        app = server.application(self.page, self.listener, TOKEN)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([self.listener],), daemon=True)
        self._thread.start()

    def ask(self, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        request = urllib.request.Request(f"{self.address}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode(), refused.headers

    def json(self, path, body=None):
        return json.loads(self.ask(path, body)[1])

    def close(self):
        self._server.should_exit = True
        self._thread.join(10)
        self.page.close()


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "Worker", Here)
    monkeypatch.setattr(tasks, "Worker", Here)
    Here.go = threading.Event()
    Here.go.set()


@pytest.fixture
def asking(tmp_path, here):
    page = Asking(tmp_path)
    yield page
    page.close()


def ended(asking, number):
    for _ in range(300):
        told = asking.json(f"api/runs/{number}")
        if told["state"] == "ended":
            return told
        time.sleep(0.05)
    raise AssertionError(told)


def step(settings, mode="flattened"):
    job, machine = answers.opened(("llama2_7b_train", "dgx_a100", settings, []))
    return simulate(job, machine, mode=mode, allow_oom=True).as_json()["step_time_s"]


def test_only_the_address_with_the_token_on_this_host_is_answered(asking):
    code, text, headers = asking.ask("")
    assert code == 200
    assert "<script src" in text
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    assert asking.ask("", Host="evil.example")[0] == 403
    assert asking.ask("", Host=f"evil.example:{asking.port}")[0] == 403
    assert asking.ask("", Origin="http://evil.example")[0] == 403
    assert asking.ask("", Origin=f"http://127.0.0.1:{asking.port}")[0] == 200
    assert asking.ask("api/quick", {}, content_type="text/plain")[0] == 403
    asking.address = asking.address.replace(TOKEN, "another")
    assert asking.ask("")[0] == 403
    assert asking.ask("../")[0] == 403
    assert asking.listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "change",
    [
        {"job": "../secret"},
        {"job": "/etc/passwd"},
        {"machine": "dgx_a100.yaml/../x"},
        {"settings": ["job.model=/etc/passwd"]},
        {"settings": ["machine.device=..\\secret.yaml"]},
        {"faults": ["link=0-1 within=/etc/passwd"]},
        {"command": "serve", "options": {"arrivals": "trace /etc/passwd"}},
        {"command": "run", "options": {"report": "x.html"}},
        {"command": "device"},
        {"unknown": 1},
    ],
)
def test_no_question_reaches_a_file_outside_the_folder(asking, change):
    told = asking.json("api/start", {"command": "run", **JOB, **change})
    assert told["error"]
    assert asking.json("api/runs")["runs"] == []


@pytest.mark.parametrize("name", ["../x", "x/y", ".hidden", "", "a" * 200, "x.html\x00"])
def test_files_are_kept_in_the_folder_alone(name):
    with pytest.raises(InputError):
        words.file_name(name)


def test_answers_are_those_of_the_command_line(asking, tmp_path):
    quick = asking.json("api/quick", {"command": "run", **JOB})
    assert quick["plain"]["step_time_s"] == step(JOB["settings"], mode="analytical")
    told = asking.json("api/start", {"command": "run", **JOB})
    exact = ended(asking, told["number"])
    timed = {"simulation_wall_s", "peak_rss_bytes"}
    plain = call("run", *SHORT, "--json").json
    assert {k: v for k, v in exact["plain"].items() if k not in timed} == {
        k: v for k, v in plain.items() if k not in timed
    }
    assert asking.json("api/start", {"command": "run", **JOB})["number"] == told["number"]
    wrong = asking.json("api/quick", {"command": "run", **JOB, "settings": ["job.parallelism.tp=3"]})
    assert f"error: {wrong['error']}\n" == call("run", *SHORT[:3], "--set", "job.parallelism.tp=3").err
    keys = {row["key"]: row for row in asking.json("api/keys", {"command": "run", **JOB})["keys"]}
    assert keys["device.hbm.bandwidth"]["number"] == 2.039
    assert keys["device.hbm.bandwidth"]["unit"] == "TB/s"
    assert asking.json("api/keep", {"command": "run", **JOB, "name": "mine"}) == {"name": "mine.yaml"}
    assert "mine.yaml" in asking.json("api/names")["job"]
    assert asking.json("api/keep", {"command": "run", **JOB, "name": "mine"})["error"]
    other = asking.json("api/start", {"command": "run", **JOB, "settings": ["job.model.layers=4"]})
    ended(asking, other["number"])
    page = asking.ask(f"api/compare?a={told['number']}&b={other['number']}")
    assert page[0] == 200
    assert "sandbox" in page[2]["content-security-policy"]
    again = server.Page(tmp_path, 1)  # the history outlives the process
    assert [each["number"] for each in again.tasks.newest(9)] == [other["number"], told["number"]]


def test_work_that_waits_or_runs_is_cancelled(asking, tmp_path):
    Here.go.clear()
    first, second = (
        asking.json("api/start", {"command": "run", **JOB, "settings": [f"job.model.layers={layers}"]})
        for layers in (2, 4)
    )
    assert (first["state"], second["state"]) == ("running", "waiting")
    for task in (second, first):
        asking.json("api/cancel", {"number": task["number"]})
    assert asking.json("api/runs")["runs"] == []
    assert not [*(tmp_path / "runs").iterdir()]
    Here.go.set()


def test_the_command_needs_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("rapid_des.report.writing.find_spec", lambda _: None)
    answer = call("ui", "--no-browser", "--folder", tmp_path / "a")
    assert answer.code == 2
    assert answer.err == (
        "error: rapid-des ui needs starlette: pip install starlette (the extra 'ui' of rapid-des)\n"
    )


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = call("ui", "--port", port, "--no-browser", "--folder", tmp_path / "a")
    assert answer.code == 2
    assert f"error: --port {port}: " in answer.err


UNNAMED = """() => [...document.querySelectorAll("input, select, button, iframe, progress")].filter((each) =>
  each.checkVisibility() && !((each.labels && each.labels.length) || each.textContent.trim() || each.title ||
  each.getAttribute("aria-label"))).map((each) => each.outerHTML)"""


def shown(tab, kind):
    tab.wait_for_selector(f"#result[data-kind={kind}]:not(.late)")
    return float(tab.get_attribute("#result", "data-step"))


def test_the_page_in_a_browser(browser, asking, tmp_path):  # noqa: F811
    text = call("presets", "show", "dgx_a100").out
    name = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    (tmp_path / "named.yaml").write_text(re.sub("^name: .*$", f'name: "{name}"', text, flags=re.MULTILINE))
    few = quote(json.dumps({"settings": {"job.model.layers": "2"}, "fields": {}}))
    browser.goto(f"{asking.address}#{few}")
    assert shown(browser, "exact") == step(JOB["settings"])
    assert browser.evaluate(UNNAMED) == []
    assert violations(browser) == []

    browser.fill("#filter", "hbm.bandwidth")
    slider = browser.locator('[data-key="device.hbm.bandwidth"] input[type=range]')
    Here.go.clear()
    slider.fill("-0.5")
    browser.wait_for_selector("#changes li:nth-child(2)")
    asked = [text.removesuffix(" ✕") for text in browser.locator("#changes button").all_inner_texts()]
    assert shown(browser, "quick") == step(asked, mode="analytical")
    Here.go.set()
    assert shown(browser, "exact") == step(asked)

    browser.click("[data-tab=links]")
    browser.locator("#fabric [data-link=gpu0-switch0]").dispatch_event("click")
    browser.wait_for_selector("#fabric .down")
    assert violations(browser) == []
    browser.select_option("#machine", "named.yaml")
    assert shown(browser, "exact") > 0
    assert browser.evaluate("window.ran") is None

    Here.go.clear()
    browser.click("[data-tab=plan]")
    browser.click("#plan-start")
    browser.click("#cancel")
    browser.click("[data-tab=history]")
    browser.wait_for_selector("#runs tr")
    assert [task["words"][0] for task in asking.json("api/runs")["runs"]].count("plan") == 0
    assert browser.evaluate(UNNAMED) == []
    Here.go.set()


def test_a_question_is_asked_again_where_a_file_of_the_folder_has_changed(tmp_path):
    waiting = tasks.TaskFolder(tmp_path / "runs", 0)
    asked = words.Asked(command="run", job="llama2_7b_train", machine="dgx_a100")
    first = waiting.start(asked)
    assert waiting.start(asked) is first
    (tmp_path / "mine.yaml").write_text("model: llama2_7b")
    assert waiting.start(asked) is not first


def test_quick_answers_of_requests_simulate_some_of_the_decode_steps():
    settings = ["job.model.layers=2", "job.inference.output_length=30"]
    told = answers.quick(("llama2_7b_inference", "dgx_a100", settings, []))
    assert told["said"].endswith("9 of the decode steps")
    keys = dict(each.removeprefix("job.").split("=") for each in settings)
    job = load_job("llama2_7b_inference", settings=keys)
    whole = simulate(job, load_machine("dgx_a100"), mode="analytical").as_json()
    assert told["plain"]["step_time_s"] == pytest.approx(whole["step_time_s"], rel=0.01)
