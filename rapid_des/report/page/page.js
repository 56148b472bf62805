"use strict";
// Tables that sort and filter, timelines with a zoom, and the numbers as a file. The page is whole without it.
(() => {
  const make = (tag, text, properties) => Object.assign(document.createElement(tag), { textContent: text }, properties);

  function sortable(table) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.textContent) return;
      const button = make("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.onclick = () => {
        const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
        const key = (row) => {
          const cell = row.cells[column];
          return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
        };
        const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
        body.append(...[...body.rows].sort((a, b) => down * order(key(a), key(b))));
      };
    });
    if (table.dataset.filter === undefined) return;
    const field = make("input", "", { type: "search" });
    const label = make("label", "Show only rows with: ", { className: "filter" });
    label.append(field);
    table.parentNode.before(label);
    field.oninput = () => {
      const wanted = field.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    };
  }

  const timeText = (ns) => {
    for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(5))} ${unit}`;
    return ns === 0 ? "0" : `${Math.round(ns)} ns`;
  };

  // A lane's spans as arrays of starts and ends, for a search by time.
  function unpacked(lane) {
    const count = lane.spans.length / 4;
    const starts = new Float64Array(count), ends = new Float64Array(count);
    const names = new Uint32Array(count), colours = new Uint8Array(count);
    for (let row = 0, moment = 0; row < count; row++) {
      starts[row] = moment + lane.spans[4 * row];
      moment = ends[row] = starts[row] + lane.spans[4 * row + 1];
      names[row] = lane.spans[4 * row + 2];
      colours[row] = lane.spans[4 * row + 3];
    }
    return { name: lane.name, starts, ends, names, colours };
  }

  // The first span from a number on that ends after a time.
  function firstAfter(ends, time, first = 0) {
    let low = first, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  function timeline(box) {
    const data = JSON.parse(box.querySelector("script.lanes").textContent);
    const lanes = data.lanes.map(unpacked);
    const row = 24, foot = 26, title = box.querySelector("figcaption").textContent;
    const canvas = make("canvas", "", { tabIndex: 0 });
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${title}. Plus and minus zoom, the arrows move, 0 shows all, n and p go from box to box.`);
    const output = make("output", "Point at a box to read it. Drag moves, + and − zoom.");
    const tools = make("div", "", { className: "zoom" });
    let from = data.begin, until = data.end, chosen = null;

    const style = () => {
      const all = getComputedStyle(document.documentElement), read = (name) => all.getPropertyValue(name).trim();
      const colours = data.colours.map((name) => read(`--c-${name}`));
      const pixels = colours.map((colour) => { // #rrggbb as opaque bytes r, g, b, a from the lowest on
        const value = parseInt(colour.slice(1), 16);
        return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
      });
      return { sharp: window.devicePixelRatio || 1, ink: read("--ink"), soft: read("--soft"), colours, pixels };
    };
    const left = () => (canvas.clientWidth < 560 ? 74 : 150);
    const scale = () => (canvas.clientWidth - left() - 8) / (until - from);
    const bright = (colour) => {
      const value = parseInt(colour.slice(1), 16);
      return 0.3 * (value >> 16) + 0.59 * ((value >> 8) & 255) + 0.11 * (value & 255) > 130;
    };

    // Boxes are one row of pixels, copied downwards: a million of them take no more calls than a few.
    function drawLane(pen, lane, top, look) {
      const sharp = look.sharp, edge = Math.round(left() * sharp), wide = Math.round((canvas.clientWidth - 8) * sharp) - edge;
      const zoom = wide / (until - from), image = pen.createImageData(wide, Math.round((row - 4) * sharp));
      const pixels = new Uint32Array(image.data.buffer), over = [];
      let drawn = -1;
      for (let at = firstAfter(lane.ends, from); at < lane.starts.length && lane.starts[at] < until; at++) {
        const end = Math.min(Math.round((lane.ends[at] - from) * zoom), wide);
        if (end <= drawn) { // within a pixel that shows an earlier box, as all up to the next pixel are
          at = firstAfter(lane.ends, from + (drawn + 0.5) / zoom, at + 1) - 1;
          continue;
        }
        const x = Math.max(Math.round((lane.starts[at] - from) * zoom), drawn, 0), width = Math.max(end - x, 1);
        drawn = x + width;
        pixels.fill(look.pixels[lane.colours[at]], x, width > 4 * sharp ? drawn - 1 : drawn);
        if (width > 14 * sharp || (chosen && chosen.lane === lane && chosen.at === at)) over.push({ at, x: (edge + x) / sharp, width: width / sharp });
      }
      for (let line = 1; line < image.height; line++) pixels.copyWithin(line * wide, 0, wide);
      pen.putImageData(image, edge, Math.round(top * sharp));
      for (const { at, x, width } of over) {
        const text = data.names[lane.names[at]], fits = Math.floor((width - 2) / 6.2);
        const short = /^\d+ /.test(text) ? text.split(" ")[0] : text;
        if (width > 14 && (short.length <= fits || fits > 5)) {
          pen.fillStyle = bright(look.colours[lane.colours[at]]) ? "#000" : "#fff";
          pen.fillText(short.slice(0, fits), x + 2, top + 14);
        }
        if (chosen && chosen.lane === lane && chosen.at === at) {
          pen.strokeStyle = look.ink;
          pen.lineWidth = 2;
          pen.strokeRect(x, top, width, row - 4);
        }
      }
    }

    function drawAxis(pen, look) {
      const low = lanes.length * row + 2, zoom = scale(), least = ((until - from) / canvas.clientWidth) * 110;
      const decade = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].map((n) => n * decade).find((n) => n >= least);
      pen.fillStyle = look.soft;
      pen.strokeStyle = look.soft;
      pen.lineWidth = 1;
      for (let tick = Math.ceil(from / step) * step; tick <= until; tick += step) {
        const x = left() + (tick - from) * zoom;
        pen.beginPath();
        pen.moveTo(x, low);
        pen.lineTo(x, low + 5);
        pen.stroke();
        pen.fillText(timeText(tick), x + 3, low + 16);
      }
    }

    let waiting = false;
    function draw() {
      waiting = false;
      const look = style(), sharp = look.sharp, height = lanes.length * row + foot;
      canvas.style.height = `${height}px`;
      canvas.width = canvas.clientWidth * sharp;
      canvas.height = height * sharp;
      const pen = canvas.getContext("2d");
      pen.scale(sharp, sharp);
      pen.font = "11px system-ui, sans-serif";
      lanes.forEach((lane, number) => {
        pen.fillStyle = look.ink;
        pen.fillText(lane.name.slice(0, left() / 6.1), 0, number * row + 14);
        drawLane(pen, lane, number * row, look);
      });
      drawAxis(pen, look);
    }
    const redraw = () => { if (!waiting) { waiting = true; requestAnimationFrame(draw); } };
    const show = (begin, length) => {
      length = Math.min(Math.max(length, 20), data.end - data.begin);
      from = Math.min(Math.max(begin, data.begin), data.end - length);
      until = from + length;
      redraw();
    };
    const zoomBy = (factor, around) => show(around - (around - from) * factor, (until - from) * factor);
    const middle = () => (from + until) / 2;
    const read = () => {
      const { lane, at } = chosen;
      output.textContent = `${lane.name}: ${data.names[lane.names[at]]}, ${timeText(lane.ends[at] - lane.starts[at])} from ${timeText(lane.starts[at])}`;
      redraw();
    };
    const timeAt = (x) => from + (x - left()) / scale();
    function point(event) {
      const lane = lanes[Math.floor(event.offsetY / row)];
      if (!lane || event.offsetX < left()) return;
      const time = timeAt(event.offsetX), at = firstAfter(lane.ends, time);
      if (at < lane.starts.length && lane.starts[at] <= time + 2 / scale()) { chosen = { lane, at }; read(); }
    }
    function next(step) {
      const lane = chosen ? chosen.lane : lanes[0];
      const at = chosen ? chosen.at + step : firstAfter(lane.ends, from);
      if (at < 0 || at >= lane.starts.length) return;
      chosen = { lane, at };
      if (lane.starts[at] < from || lane.ends[at] > until) show(lane.starts[at] - (until - from) / 3, until - from);
      read();
    }
    function nextLane(step) {
      const number = Math.min(Math.max((chosen ? lanes.indexOf(chosen.lane) : 0) + step, 0), lanes.length - 1);
      const time = chosen ? chosen.lane.starts[chosen.at] : from;
      const lane = lanes[number];
      if (lane.starts.length) { chosen = { lane, at: Math.min(firstAfter(lane.ends, time), lane.starts.length - 1) }; read(); }
    }

    const shift = (share) => show(from + share * (until - from), until - from);
    const keys = {
      "+": () => zoomBy(0.5, middle()), "=": () => zoomBy(0.5, middle()), "-": () => zoomBy(2, middle()),
      ArrowLeft: () => shift(-0.2), ArrowRight: () => shift(0.2), ArrowUp: () => nextLane(-1), ArrowDown: () => nextLane(1),
      0: () => show(data.begin, data.end), n: () => next(1), p: () => next(-1),
    };
    canvas.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    };
    for (const [text, name, key] of [["+", "Zoom in", "+"], ["−", "Zoom out", "-"], ["◀", "Earlier", "ArrowLeft"], ["▶", "Later", "ArrowRight"], ["All", "Show all", "0"]]) {
      const button = make("button", text, { type: "button", onclick: keys[key] });
      button.setAttribute("aria-label", name);
      tools.append(button);
    }
    tools.append(output);

    const pointers = new Map();
    canvas.onpointerdown = (event) => { pointers.set(event.pointerId, event.offsetX); canvas.setPointerCapture(event.pointerId); point(event); };
    canvas.onpointerup = canvas.onpointercancel = (event) => pointers.delete(event.pointerId);
    canvas.onpointermove = (event) => {
      const before = pointers.get(event.pointerId);
      if (before === undefined) return point(event);
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        zoomBy(Math.max(Math.abs(before - other), 8) / Math.max(Math.abs(event.offsetX - other), 8), timeAt((event.offsetX + other) / 2));
      } else show(from - (event.offsetX - before) / scale(), until - from);
      pointers.set(event.pointerId, event.offsetX);
    };
    canvas.ondblclick = (event) => zoomBy(0.25, timeAt(event.offsetX));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) return; // a page that is read scrolls
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 0.8 : 1.25, timeAt(event.offsetX));
    }, { passive: false });
    new ResizeObserver(redraw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    box.classList.add("live");
    box.querySelector(".scroll").before(canvas, tools);
    draw();
  }

  document.querySelectorAll("table.rows").forEach(sortable);
  document.querySelectorAll("figure.timeline").forEach(timeline);
  liveFabrics(document);
  const save = document.getElementById("save");
  if (!save) return;
  save.hidden = false;
  save.onclick = () => {
    const text = document.getElementById("plain").textContent;
    const link = make("a", "", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: `${document.title}.json` });
    link.click();
  };
})();
