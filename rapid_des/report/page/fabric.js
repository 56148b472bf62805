"use strict";
// Fabrics: which figure colours them, at which time, and which box is open. Without it the first figure is shown.
function liveFabrics(root) {
  const make = (tag, text, properties) => Object.assign(document.createElement(tag), { textContent: text }, properties);
  const boxes = [...root.querySelectorAll("div.fabric")];
  if (!boxes.length) return;
  const all = boxes.map((box) => ({ box, ...JSON.parse(box.querySelector("script").textContent) }));
  const tools = make("div", "", { className: "zoom" });
  const choice = (name, texts) => {
    const label = make("label", `${name} `, {}), field = make("select", "", {});
    field.append(...texts.map((text, value) => make("option", text, { value })));
    label.append(field);
    if (texts.length > 1) tools.append(label);
    return field;
  };
  const view = choice("Look at", all.map((each) => each.name || "the whole fabric"));
  const measure = choice("Colour by", all[0].measures.map(([name]) => name));
  const times = all[0].times, moment = make("input", "", { type: "range", min: 0, max: times.length, value: 0 });
  const said = make("output", "");
  if (times.length) {
    const label = make("label", "Time ", {});
    label.append(moment);
    tools.append(label, said);
  }
  view.value = Math.max(all.findIndex((each) => each.name === root.dataset?.view), 0);
  function paint() {
    if (root.dataset) root.dataset.view = all[Number(view.value)].name;
    const chosen = Number(measure.value || 0), at = Number(moment.value);
    const over = at > 0 && chosen === 0;
    said.textContent = over ? `${times[at - 1]}; darkest is the busiest moment of all` : "the whole step";
    moment.disabled = chosen !== 0;
    all.forEach((each, number) => {
      each.box.hidden = number !== Number(view.value);
      if (each.box.hidden) return;
      for (const shape of each.box.querySelectorAll("[data-l]")) {
        const level = over ? (shape.dataset.t || "")[at - 1] || 0 : shape.dataset.l[chosen] || 0;
        if (shape.classList.contains("node")) shape.style.fill = `var(--u-${level})`;
        else if (shape.classList.contains("line")) shape.setAttribute("stroke", `var(--u-${level})`);
      }
      const items = each.box.querySelectorAll(".legend li");
      const texts = (each.measures[chosen] || ["", []])[1];
      items.forEach((item, level) => { item.lastChild.textContent = over ? (level ? "" : "idle to busiest") : texts[level] || ""; });
    });
  }
  view.onchange = measure.onchange = moment.oninput = paint;
  for (const { box } of all) box.onclick = (event) => {
    const target = event.target.closest("[data-opens]");
    const number = target ? all.findIndex((each) => each.name === target.dataset.opens) : -1;
    if (number > 0) { view.value = number; paint(); view.focus(); }
  };
  boxes[0].before(tools);
  paint();
}
