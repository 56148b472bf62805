"use strict";
// The page asks the process that printed its address; every text from there is set as text, and HTML comes
// only from the report's own parts, which escape all names.
(() => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, text, properties = {}) => Object.assign(document.createElement(tag), { textContent: text }, properties);
  const state = { tab: "step", job: "llama2_7b_train", machine: "dgx_a100", settings: {}, faults: [] };
  const FIELDS = ["plan-gpus", "plan-top", "plan-within", "serve-rate", "serve-ttft", "serve-tpot", "serve-requests", "serve-prompt", "serve-output"];
  const EXACT_AFTER_MS = 600, POLL_MS = 400;
  let keys = [], shown = null; // `shown` is the task whose end the page waits for

  async function answer(response) {
    const plain = await response.json();
    return response.ok || plain.error ? plain : { error: `the page's process answered ${response.status}` };
  }
  const lost = (error) => ({ error: `no answer from rapid-des ui: ${error.message}` });
  const post = (name, body) => fetch(`api/${name}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }).then(answer).catch(lost);
  const get = (name) => fetch(`api/${name}`).then(answer).catch(lost);

  const value = (id) => $(id).value.trim();
  const options = {
    plan: () => ({ gpus: value("plan-gpus"), top: value("plan-top"), within: value("plan-within") }),
    serve: () => ({
      arrivals: `poisson rate=${value("serve-rate")}/s`, slo: `ttft=${value("serve-ttft")}s tpot=${value("serve-tpot")}ms`,
      requests: value("serve-requests"), prompt: value("serve-prompt"), output: value("serve-output"),
    }),
  };
  function asked(command) {
    const settings = Object.entries(state.settings).map(([key, text]) => `${key}=${text}`);
    const faults = command === "plan" ? [] : state.faults;
    return { command, job: state.job, machine: state.machine, settings, faults, options: options[command] ? options[command]() : {} };
  }
  const command = () => (state.tab === "plan" || state.tab === "serve" ? state.tab : "run");

  // What is wrong, beside the key that it names.
  function complain(told) {
    document.querySelectorAll("#keys .error").forEach((line) => line.remove());
    const text = told && told.error ? told.error : "";
    const named = text && Object.keys(state.settings).find((key) => told.key && (key === told.key || key.endsWith(`.${told.key}`)) || text.includes(key));
    const field = named && document.querySelector(`.field[data-key="${CSS.escape(named)}"]`);
    if (field) {
      field.closest("details").open = true;
      field.append(make("p", text, { className: "error" }));
      field.querySelector("input").setAttribute("aria-invalid", "true");
    }
    $("problem").hidden = !text;
    $("problem").textContent = text;
    return Boolean(text);
  }

  function show(told, kind) {
    $("kind").textContent = kind;
    $("result").innerHTML = told.html;
    $("result").dataset.kind = kind.split(":")[0];
    $("result").dataset.step = String(told.plain.step_time_s);
    $("result").classList.remove("late");
    $("report").hidden = true;
  }

  // Quick answers: one question at a time, and then the newest.
  let asking = false, again = false, timer = 0;
  async function quick() {
    if (asking) { again = true; return; }
    asking = true;
    do {
      again = false;
      const question = asked("run"), text = JSON.stringify(question);
      const told = await post("quick", question);
      if (again || text !== JSON.stringify(asked("run")) || command() !== "run") continue;
      if (!complain(told) && $("result").dataset.exact !== text) show(told, `quick: ${told.said}; the exact run follows`);
    } while (again);
    asking = false;
  }

  function changed() {
    location.replace(`#${encodeURIComponent(JSON.stringify({ ...state, fields: Object.fromEntries(FIELDS.map((id) => [id, $(id).value])) }))}`);
    drawChanges();
    clearTimeout(timer);
    $("result").classList.add("late");
    tellCommand();
    if (state.tab === "plan" || state.tab === "history") return;
    if (command() === "run") quick();
    timer = setTimeout(() => start(command(), true), EXACT_AFTER_MS);
  }

  async function tellCommand() {
    const told = await post("command", asked(command()));
    $("again").hidden = !told.words || state.tab === "history";
    if (told.words) $("command").textContent = ["rapid-des", ...told.words].map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
  }

  // Long work: the page starts it, asks how far it is, and may leave; `fleeting` work ends when it is outdated.
  async function start(name, fleeting = false) {
    const before = shown;
    const question = asked(name);
    const told = await post("start", question);
    if (before && before.fleeting && before.number !== told.number) await post("cancel", { number: before.number });
    if (complain(told)) return;
    shown = { number: told.number, fleeting, text: JSON.stringify(question), name };
    follow(shown);
  }

  async function follow(task) {
    for (let wait = 50; shown === task; wait = POLL_MS) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      const told = await get(`runs/${task.number}`);
      if (shown !== task) return;
      const going = told.state === "running" || told.state === "waiting";
      $("work").hidden = !going;
      if (going) { working(told); continue; }
      shown = null;
      $("rows").replaceChildren();
      if (complain(told) || told.state !== "ended") return;
      if (told.html) {
        $("result").dataset.exact = task.text;
        show(told, "exact: every message simulated");
      } else report(`api/runs/${task.number}/report`);
      return;
    }
  }

  function working(told) {
    const progress = told.progress || { text: told.state, share: null, rows: [] };
    $("said").textContent = progress.text;
    if (progress.share === null) $("bar").removeAttribute("value"); else $("bar").value = progress.share;
    if (told.words[0] === "plan") { $("report").hidden = true; $("result").replaceChildren(); liveRows(progress.rows); }
  }

  function report(address) {
    $("result").replaceChildren();
    $("kind").textContent = "";
    $("report").src = address;
    $("report").hidden = false;
  }

  const COLUMNS = [["step", (row) => `${(1e3 * row.step_time_s).toPrecision(5)} ms`], ["MFU", (row) => `${(100 * row.mfu).toFixed(1)} %`], ["memory", (row) => `${(row.memory_bytes / 2 ** 30).toFixed(1)} GiB`]];
  const LAYOUT = ["tp", "cp", "pp", "dp", "ep", "chunks", "micro_batch", "recompute", "zero_stage"];
  function liveRows(rows) {
    const table = make("table", "", { className: "rows" });
    table.createCaption().textContent = "The best layouts so far";
    const names = LAYOUT.filter((name) => rows.some((row) => name in row));
    const head = table.createTHead().insertRow();
    for (const name of [...COLUMNS.map(([name]) => name), ...names, "so far"]) head.append(make("th", name.replace("_", " "), { scope: "col" }));
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      const texts = [...COLUMNS.map(([, text]) => text(row)), ...names.map((name) => String(row[name] ?? "")), row.certain ? "certain" : "may change"];
      texts.forEach((text) => { line.insertCell().textContent = text; });
    }
    const box = make("div", "", { className: "scroll", tabIndex: 0 });
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "The best layouts so far");
    box.append(table);
    $("rows").replaceChildren(...(rows.length ? [box] : []));
  }

  // The form of keys.
  function drawChanges() {
    const items = Object.entries(state.settings).map(([key, text]) => [`${key}=${text}`, () => { delete state.settings[key]; refresh(); }]);
    if (state.tab !== "plan") items.push(...state.faults.map((fault, at) => [fault, () => { state.faults.splice(at, 1); refresh(); }]));
    $("changes").replaceChildren(...items.map(([text, undo]) => {
      const item = make("li", ""), button = make("button", `${text} ✕`, { type: "button", onclick: undo });
      button.setAttribute("aria-label", `Undo ${text}`);
      item.append(button);
      return item;
    }));
  }

  const written = (number, unit) => `${Number(number.toPrecision(4))}${unit ? ` ${unit}` : ""}`;
  function fieldOf(row) {
    const box = make("div", "", { className: "field", title: [row.meaning, row.allowed && `Allowed: ${row.allowed}`].filter(Boolean).join(" ") });
    box.dataset.key = row.key;
    const id = `key-${row.key}`, input = make("input", "", { id, value: state.settings[row.key] ?? row.value });
    const label = make("label", row.key.split(".").slice(2).join(".") || row.key.split(".").pop(), { htmlFor: id });
    const set = (text) => {
      if (text === row.value || text === "") delete state.settings[row.key]; else state.settings[row.key] = text;
      box.classList.toggle("changed", row.key in state.settings);
      input.removeAttribute("aria-invalid");
      changed();
    };
    input.onchange = () => set(input.value.trim());
    box.classList.toggle("changed", row.key in state.settings);
    box.append(label, input);
    if (row.number > 0) {
      const slider = make("input", "", { type: "range", min: row.whole ? -6 : -2, max: row.whole ? 6 : 2, step: row.whole ? 1 : 0.05, value: 0 });
      const now = parseFloat(input.value);
      if (now > 0) slider.value = Math.log2(now / row.number);
      slider.setAttribute("aria-label", `${row.key}, slider`);
      slider.oninput = () => {
        const number = row.number * 2 ** Number(slider.value);
        input.value = Number(slider.value) === 0 ? row.value : written(row.whole ? Math.max(1, Math.round(number)) : number, row.unit);
        set(input.value);
      };
      box.append(slider);
    }
    return box;
  }

  const OPEN = ["job.parallelism", "job.training", "job.inference"];
  function drawKeys() {
    const groups = new Map();
    for (const row of keys) {
      const parts = row.key.split("."), name = parts.length > 2 ? parts.slice(0, 2).join(".") : parts[0];
      if (!groups.has(name)) {
        const group = make("details", "", { open: OPEN.includes(name) });
        group.append(make("summary", name));
        groups.set(name, group);
      }
      groups.get(name).append(fieldOf(row));
    }
    const rank = (name) => (OPEN.includes(name) ? OPEN.indexOf(name) : OPEN.length);
    $("keys").replaceChildren(...[...groups].sort((a, b) => rank(a[0]) - rank(b[0])).map(([, group]) => group));
    filter();
  }

  function filter() {
    const wanted = value("filter").toLowerCase();
    for (const group of $("keys").children) {
      const fields = [...group.querySelectorAll(".field")];
      for (const field of fields) field.hidden = !`${field.dataset.key} ${field.title}`.toLowerCase().includes(wanted);
      group.hidden = fields.every((field) => field.hidden);
      if (wanted) group.open = !group.hidden;
    }
  }

  async function loadKeys() {
    const told = await post("keys", asked("run"));
    if (told.keys) { keys = told.keys; drawKeys(); }
  }

  async function loadFabric() {
    if (state.tab !== "links") return;
    const told = await post("fabric", asked("run"));
    if (told.html) { $("fabric").innerHTML = told.html; liveFabrics($("fabric")); }
  }

  function refresh() {
    for (const id of ["model", "software", "device"]) $(id).value = state.settings[$(id).dataset.key] ?? "";
    loadKeys();
    loadFabric();
    changed();
  }

  // Screens.
  function screen() {
    for (const button of $("tabs").children) button.setAttribute("aria-pressed", String(button.dataset.tab === state.tab));
    for (const part of document.querySelectorAll("[data-show]")) part.hidden = !part.dataset.show.split(" ").includes(state.tab);
    document.querySelector("main").classList.toggle("wide", state.tab === "history");
    document.querySelector(".choices").hidden = $("changes").hidden = state.tab === "history";
    $("report").hidden = true;
    $("kind").textContent = "";
    $("rows").replaceChildren();
    $("result").replaceChildren();
    delete $("result").dataset.exact;
    if (shown && shown.name !== command()) { shown = null; $("work").hidden = true; }
    if (state.tab === "history") history();
    loadFabric();
    changed();
  }

  async function history() {
    const told = await get("runs");
    if (complain(told) || state.tab !== "history") return;
    const picked = new Set([...document.querySelectorAll("#runs input:checked")].map((box) => box.value));
    $("runs").replaceChildren(...told.runs.map((run) => runRow(run, picked)));
    choose();
    setTimeout(history, 3 * POLL_MS);
  }

  function runRow(run, picked) {
    const row = make("tr", "");
    const box = make("input", "", { type: "checkbox", value: run.number, checked: picked.has(run.number), onchange: choose });
    box.setAttribute("aria-label", `Compare run ${run.number}`);
    box.disabled = run.state !== "ended" || Boolean(run.error) || run.words[0] !== "run";
    const text = run.progress ? run.progress.text : run.error || (run.seconds === undefined ? run.state : `${run.state}, ${run.seconds} s`);
    const going = run.state === "running" || run.state === "waiting";
    const act = make("button", going ? "Cancel" : "Open", { type: "button", onclick: () => (going ? post("cancel", { number: run.number }).then(history) : open(run)) });
    act.setAttribute("aria-label", `${act.textContent} run ${run.number}`);
    row.insertCell().append(box);
    row.insertCell().textContent = String(Number(run.number));
    row.insertCell().append(make("code", `rapid-des ${run.words.join(" ")}`));
    row.insertCell().textContent = text;
    row.insertCell().append(act);
    return row;
  }

  function choose() {
    $("compare").disabled = document.querySelectorAll("#runs input:checked").length !== 2;
  }

  function open(run) {
    const { command: name, job, machine, settings, faults, options: given } = run.asked;
    Object.assign(state, { tab: { plan: "plan", serve: "serve" }[name] || (faults.length ? "links" : "step"), job, machine, faults: [...faults] });
    state.settings = Object.fromEntries(settings.map((text) => [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)]));
    const said = [["plan-gpus", given.gpus], ["plan-top", given.top], ["plan-within", given.within], ["serve-requests", given.requests], ["serve-prompt", given.prompt], ["serve-output", given.output]];
    const limits = `${given.arrivals || ""} ${given.slo || ""}`;
    for (const [id, pattern] of [["serve-rate", /rate=([\d.]+)/], ["serve-ttft", /ttft=([\d.]+)/], ["serve-tpot", /tpot=([\d.]+)/]]) said.push([id, (limits.match(pattern) || [])[1]]);
    for (const [id, text] of said) if (text !== undefined) $(id).value = text;
    $("job").value = job;
    $("machine").value = machine;
    screen();
    refresh();
    clearTimeout(timer);
    shown = { number: run.number, fleeting: false, text: JSON.stringify(asked("run")), name };
    follow(shown);
  }

  function save(name, text) {
    make("a", "", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name }).click();
  }

  function wire() {
    for (const button of $("tabs").children) button.onclick = () => { state.tab = button.dataset.tab; screen(); };
    for (const id of ["job", "machine"]) $(id).onchange = () => { state[id] = $(id).value; state.settings = {}; state.faults = []; refresh(); };
    for (const id of ["model", "software", "device"]) $(id).onchange = () => { const key = $(id).dataset.key; if ($(id).value) state.settings[key] = $(id).value; else delete state.settings[key]; refresh(); };
    for (const slider of document.querySelectorAll("[data-for]")) {
      const field = $(slider.dataset.for);
      slider.value = Math.log2(parseFloat(field.value) || 1);
      slider.oninput = () => { field.value = written(2 ** Number(slider.value), ""); changed(); };
    }
    for (const id of FIELDS) $(id).onchange = changed;
    $("filter").oninput = filter;
    $("plan-start").onclick = () => start("plan");
    $("explain").onclick = () => start("report");
    $("cancel").onclick = async () => { const task = shown; shown = null; $("work").hidden = true; $("rows").replaceChildren(); $("kind").textContent = "cancelled"; if (task) await post("cancel", { number: task.number }); };
    $("compare").onclick = () => { const [b, a] = [...document.querySelectorAll("#runs input:checked")].map((box) => box.value); report(`api/compare?a=${a}&b=${b}`); };
    $("break").onsubmit = (event) => { event.preventDefault(); if (value("fault")) { state.faults.push(value("fault")); $("fault").value = ""; refresh(); } };
    $("fabric").onclick = (event) => {
      const cable = event.target.closest("[data-link]");
      if (!cable) return;
      const fault = `link=${cable.dataset.link} down=true`, at = state.faults.indexOf(fault);
      if (at < 0) state.faults.push(fault); else state.faults.splice(at, 1);
      refresh();
    };
    $("save-command").onclick = () => save("command.sh", `${$("command").textContent}\n`);
    for (const button of document.querySelectorAll("[data-file]")) button.onclick = async () => {
      const told = await post("file", { ...asked("run"), kind: button.dataset.file });
      if (!complain(told)) save(`${told.name}.yaml`, told.text);
    };
    $("keep").onsubmit = async (event) => {
      event.preventDefault();
      const told = await post("keep", { ...asked("run"), name: value("keep-name") });
      $("kept").textContent = told.error || `kept as ${told.name}`;
      if (told.name) fillChoices(await get("names"));
    };
  }

  function fillChoices(names) {
    for (const id of ["job", "machine", "model", "software", "device"]) {
      const first = id === "job" || id === "machine" ? [] : [make("option", "as in the file", { value: "" })];
      $(id).replaceChildren(...first, ...(names[id] || []).map((name) => make("option", name, { value: name })));
    }
    $("job").value = state.job;
    $("machine").value = state.machine;
  }

  async function begin() {
    try {
      const { fields, ...kept } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      Object.assign(state, kept);
      for (const id of FIELDS) if (fields[id] !== undefined) $(id).value = fields[id];
    } catch { /* no state in the address: the page begins with a preset */ }
    const names = await get("names");
    if (complain(names)) return;
    fillChoices(names);
    wire();
    const known = await get("runs");
    screen();
    refresh();
    const going = (known.runs || []).find((run) => run.state === "running" && run.asked.command === command());
    if (going && state.tab === "plan") { shown = { number: going.number, fleeting: false, text: "", name: "plan" }; follow(shown); }
  }
  begin();
})();
