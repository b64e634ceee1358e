const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "none yet");
const short = (value) => (typeof value === "number" ? Number(value.toPrecision(5)).toLocaleString("en") : String(value));
const rates = {}; // rows at the last look, by model

// The share of rows at or below each edge: of held-out rows, and of those that came in.
function chart(doubt) {
  const [width, height, left, bottom, top] = [420, 190, 46, 30, 8];
  const edges = doubt.edges;
  const low = edges[0], high = edges[edges.length - 1] || 1;
  const last = Math.max(high, low + 1e-12);
  const x = (value) => left + ((width - left - 8) * (value - low)) / (last - low);
  const y = (value) => height - bottom - (height - bottom - top) * value;
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  const rows = doubt.now.reduce((sum, one) => sum + one, 0);
  svg.setAttribute("aria-label", `Share of rows with at most this ${doubt.name}: held-out rows, and ${rows} that came in`);
  for (const level of [0, 0.5, 1]) {
    svg.append(make("line", { class: "axis", x1: left, x2: width - 8, y1: y(level), y2: y(level) }));
    svg.append(make("text", { x: left - 6, y: y(level) + 4, "text-anchor": "end" }, `${100 * level}%`));
  }
  for (const [value, anchor] of [[low, "start"], [(low + last) / 2, "middle"], [last, "end"]]) {
    svg.append(make("text", { x: x(value), y: height - 10, "text-anchor": anchor }, short(value)));
  }
  for (const [kind, counts] of [["before", doubt.before], ["now", doubt.now]]) {
    const total = counts.reduce((sum, one) => sum + one, 0);
    if (!total) continue;
    let upto = counts[0];
    const points = edges.map((edge, i) => {
      upto += counts[i + 1];
      return `${x(edge).toFixed(1)},${y(upto / total).toFixed(1)}`;
    });
    svg.append(make("path", { class: kind, d: `M${points.join("L")}` }));
  }
  return svg;
}

const DOUBTS = {
  std: "Predicted deviation", epistemic_std: "Doubt that more data would settle",
  entropy: "Entropy of the classes", epistemic: "Doubt that more data would settle",
};

function table(headings, rows, none) {
  if (!rows.length) return make("p", { class: "soft" }, none);
  const head = make("tr", {}, ...headings.map((one) => make("th", { scope: "col" }, one)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))));
  return make("div", { class: "scroll" }, make("table", { class: "plain" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

function facts(model) {
  const before = rates[model.name];
  const now = { rows: model.rows, time: performance.now() };
  const fresh = before && model.rows >= before.rows;
  const rate = fresh ? (1000 * (model.rows - before.rows)) / (now.time - before.time) : null;
  rates[model.name] = now;
  const held = model.task === "classification" ? "labels that were right" : "labels inside the interval";
  const list = {
    "rows answered": model.rows.toLocaleString("en"),
    "rows per second": rate === null ? "…" : rate.toFixed(1),
    "rows that wait": model.waiting.toLocaleString("en"),
    "unlike the training": share(model.unlike, model.rows),
    abstained: share(model.abstained, model.rows),
    [held]: model.labels ? `${share(model.hits, model.labels)} of ${model.labels.toLocaleString("en")}` : "none yet",
    version: `${model.version}, since ${model.since.replace("T", " ").slice(0, 19)} UTC`,
  };
  return make("dl", { class: "facts-row" }, ...Object.entries(list).map(
    ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function verdict(model) {
  const watched = model.watched;
  const alarm = watched !== null && watched.alarms > 0;
  const words = watched === null ? "What comes in is not compared with the training data." : watched.words;
  const card = make("section", { class: alarm ? "verdict alarm" : "verdict" });
  card.append(make("h2", {}, alarm ? "Alarm" : "Watch"), make("p", { class: "first" }, words));
  for (const one of model.alarms) card.append(make("p", {}, `${one.time.slice(11, 19)} UTC: ${one.words}`));
  for (const note of model.notes) card.append(make("p", { class: "note" }, note));
  card.append(facts(model));
  return card;
}

function doubts(model) {
  if (model.watched === null || !model.watched.doubts.length) return make("p", { class: "soft" }, "There is no profile of doubt.");
  const key = make("p", { class: "key" }, "Share of rows with at most this doubt: ", make("b", {}, "rows that came in"), " and (dashed) held-out rows of the training.");
  const figures = model.watched.doubts.map((one) => make("figure", {}, make("h3", {}, DOUBTS[one.name] || one.name), chart(one)));
  return make("div", {}, make("div", { class: "two" }, ...figures), key);
}

function odd(model) {
  const columns = Object.entries(model.watched ? model.watched.by_column : {}).sort((a, b) => b[1] - a[1]);
  const last = table(["When", "Row", "Why"], model.odd.map((one) => [one.time.slice(11, 19), one.id, one.why]), "No row was unlike the training data.");
  if (!columns.length) return last;
  const words = columns.slice(0, 8).map(([name, count]) => `${name} ${count.toLocaleString("en")}`).join(", ");
  return make("div", {}, make("p", { class: "soft" }, `By column: ${words}.`), last);
}

// --- a row to try ---

function field(name, kind) {
  const id = `try-${name}`;
  const known = kind.examples || [];
  const input = known.length
    ? make("input", { id, name, list: `${id}-known` })
    : make("input", { id, name, ...(kind.type[0] === "number" ? { inputmode: "decimal" } : {}) });
  const list = known.length ? make("datalist", { id: `${id}-known` }, ...known.map((one) => make("option", { value: one }))) : null;
  return make("div", {}, make("label", { for: id }, name), input, list);
}

function read(form, properties) {
  const row = {};
  for (const [name, kind] of Object.entries(properties)) {
    const text = form.elements[name].value.trim();
    if (text === "") row[name] = null;
    else if (kind.type[0] === "number" && Number.isFinite(Number(text))) row[name] = Number(text);
    else if (kind.type[0] === "boolean" && /^(true|false)$/i.test(text)) row[name] = text.toLowerCase() === "true";
    else row[name] = text;
  }
  return row;
}

function answer(reply) {
  if (reply.status !== 200) return make("p", { class: "warned" }, reply.content.error);
  const { prediction, unlike, why, abstain, abstain_why, id, ...rest } = reply.content.predictions[0];
  const box = make("div", {}, make("p", { class: "big" }, short(prediction)));
  if (abstain) box.append(make("p", { class: "warned" }, `It abstains: ${abstain_why}.`));
  if (unlike) box.append(make("p", { class: "warned" }, `Unlike the training data: ${why}.`));
  const list = make("dl", { class: "facts-list" });
  for (const [name, value] of Object.entries(rest)) {
    const pairs = value !== null && typeof value === "object" && !Array.isArray(value);
    const shown = pairs ? Object.entries(value).map(([label, part]) => `${label} ${short(part)}`).join(", ") : Array.isArray(value) ? value.join(", ") : short(value);
    list.append(make("dt", {}, name), make("dd", {}, shown));
  }
  box.append(list);
  return box;
}

function trial(model, properties) {
  const form = make("form", { class: "try", "aria-label": `Try a row of ${model.name}` });
  for (const [name, kind] of Object.entries(properties)) form.append(field(name, kind));
  form.append(make("div", { class: "press" }, make("button", { type: "submit" }, "Predict")));
  const place = make("div", { class: "answer", role: "status" });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    place.replaceChildren(answer(await ask(`/models/${model.name}/predict`, { rows: [read(form, properties)] })));
    refresh();
  });
  return make("div", { class: "card" }, form, place);
}

// --- the page: frames are made once, what is in them again and again ---

const frames = {};
async function frame(model) {
  const { content } = await ask("/openapi.json");
  const body = content.paths[`/models/${model.name}/predict`].post.requestBody.content["application/json"].schema;
  const parts = { version: model.version, verdict: make("div"), doubts: make("div"), odd: make("div") };
  const section = make("section", { "data-model": model.name },
    make("h2", { class: "model" }, `${model.name} `, make("span", { class: "soft" }, `${model.task} of ${model.target}`)), parts.verdict,
    make("h2", {}, "Doubt, against held-out rows"), parts.doubts,
    make("h2", {}, "Last rows unlike the training data"), parts.odd,
    make("h2", {}, "Try a row"), trial(model, body.properties.rows.items.properties));
  const before = frames[model.name];
  if (before) before.section.replaceWith(section);
  else document.getElementById("main").append(section);
  frames[model.name] = { ...parts, section };
}

let busy = false;
async function refresh() {
  if (busy) return;
  busy = true;
  try {
    const { status, content } = await ask("/state");
    if (status === 200) {
      for (const model of content.models) {
        if (!frames[model.name] || frames[model.name].version !== model.version) await frame(model);
        const parts = frames[model.name];
        parts.verdict.replaceChildren(verdict(model));
        parts.doubts.replaceChildren(doubts(model));
        parts.odd.replaceChildren(odd(model));
      }
      trouble("");
    }
  } catch {
    trouble("The service does not answer; what is shown is how it was.");
  }
  busy = false;
}
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, 2000);
