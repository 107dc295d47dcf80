// The page of the local server. Everything comes from /overview and /v1; the key is sent as a header and kept for this tab only.
import { html, render, useEffect, useMemo, useRef, useState } from "./preact-htm.js";

const KEY = "tinker-key";
const PRICES = "tinker-prices";
const EVERY_MS = 2000;
const KINDS = { training: "training", sampling_prefill: "prompts", sampling_sample: "samples" };

class NeedsKey extends Error {}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { "X-API-Key": key } : {};
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
  if (answer.status === 401) throw new NeedsKey();
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Error(body.error?.message ?? (typeof body.detail === "string" ? body.detail : `status ${answer.status}`));
  }
  return answer;
}

// Text

const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5]; // between labelled steps
const mark = (tick) => (Math.abs(tick) >= 1e4 ? short.format(tick) : tick && Math.abs(tick) < 1e-3 ? Number(tick.toPrecision(4)).toExponential() : precise(tick)); // of an axis
const precise = (value) => (value == null ? "" : Number(value.toPrecision(4)).toString()); // null: a tick that is not labelled, no point

// Identifiers begin with the session's, which says less than their end; of a path, the name at its end says most.
const nameOf = (run) => run.name ?? brief(run.id);
function labelOf(model, runs) {
  const [, id, name] = model.match(/^tinker:\/\/([^/]+)\/[^/]+\/(.+)$/) ?? [];
  const run = id && nameOf(runs.find((one) => one.id === id) ?? { id });
  return !name ? model : name === run ? name : `${name} of ${run}`;
}
const brief = (id) => id.replace(/([0-9a-f]{6})[0-9a-f]{2}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/, "$1…");

function bytes(count) {
  if (count == null) return "unknown";
  const units = ["B", "KB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, count > 0 ? Math.floor(Math.log2(count) / 10) : 0);
  return `${(count / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

function ago(seconds) {
  const passed = Math.max(0, seconds);
  if (passed < 60) return `${Math.round(passed)} s ago`;
  if (passed < 3600) return `${Math.round(passed / 60)} min ago`;
  return passed < 86400 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} d ago`;
}

// Charts

const dark = matchMedia("(prefers-color-scheme: dark)");
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLORS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"]; // of runs, in the order in which they are drawn

// The range of the values that are usual in their own line, where others are so far away that they would flatten the curves; else null.
function findRange(lines) {
  const ends = lines.filter((line) => line.length).map((line) => {
    const sorted = [...line].sort((one, other) => one - other);
    const [low, high] = [0.25, 0.75].map((part) => sorted[Math.floor(part * (sorted.length - 1))]);
    const usual = low < high ? sorted.filter((value) => value >= low - 3 * (high - low) && value <= high + 3 * (high - low)) : sorted;
    return { usual: [usual[0], usual.at(-1)], all: [sorted[0], sorted.at(-1)] };
  });
  const [usual, all] = ["usual", "all"].map((kind) => [Math.min(...ends.map((one) => one[kind][0])), Math.max(...ends.map((one) => one[kind][1]))]);
  const width = usual[1] - usual[0];
  return width > 0 && all[1] - all[0] > 20 * width ? [usual[0] - width * 0.1, usual[1] + width * 0.1] : null;
}

// The exponential moving average of a line's points; values before the first count as equal to it.
function average(line, weight) {
  let mean = null;
  return line.map((value) => (value == null ? null : (mean = mean == null ? value : weight * mean + (1 - weight) * value)));
}

// Without a pointer over it, a legend shows the last value of each line.
function showLast(plot) {
  if (plot.cursor.idx == null) plot.setLegend({ idxs: plot.data.map((line) => line.findLastIndex((value) => value != null)) });
}

function Chart({ x, series, names, label, log = false, range = null, smooth = 0 }) {
  const place = useRef(null);
  const plot = useRef(null);
  const shown = useRef(null);
  shown.current = range;
  const faint = smooth > 0; // the lines as they are, behind their averages
  const data = useMemo(() => [x, ...(faint ? series : []), ...(faint ? series.map((line) => average(line, smooth)) : series)], [x, series, smooth]);
  const [theme, setTheme] = useState(dark.matches);
  useEffect(() => {
    const change = () => setTheme(dark.matches);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);
  useEffect(() => {
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const said = (_, value) => precise(value);
    const line = (name, at, alpha) => ({ label: name, value: said, stroke: color(COLORS[at % COLORS.length]) + alpha, width: 2, spanGaps: true, points: { show: x.length < 2 } });
    const width = () => Math.max(120, place.current.clientWidth);
    const height = () => (width() < 420 ? 150 : 210);
    plot.current = new uPlot({
      width: width(), height: height(), scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: log ? undefined : (_, low, high) => shown.current ?? (low == null ? [low, high] : uPlot.rangeNum(low, high, 0.1, true)) } }, legend: { live: names.length > 1 }, hooks: { setCursor: [showLast] },
      axes: [{ ...axis, label, size: 30, labelSize: 20, labelGap: 0, labelFont: "12px system-ui, sans-serif", incrs: label === "step" ? STEPS : undefined, values: (_, ticks) => ticks.map((tick) => Math.abs(tick).toLocaleString("en")) }, { ...axis, size: (_, texts) => 20 + 7 * Math.max(5, ...(texts ?? []).map((text) => text.length)), values: (_, ticks) => ticks.map(mark) }],
      series: [{ label, value: (_, value) => precise(value && Math.abs(value)) }, ...(faint ? names.map((name, at) => ({ ...line(name, at, "50"), class: "faint-line" })) : []), ...names.map((name, at) => line(name, at, ""))],
    }, data, place.current);
    showLast(plot.current);
    const watch = new ResizeObserver(() => plot.current.setSize({ width: width(), height: height() }));
    watch.observe(place.current);
    return () => { watch.disconnect(); plot.current.destroy(); };
  }, [theme, names.join("\n"), label, log, faint]);
  useEffect(() => {
    plot.current.setData(data);
    showLast(plot.current);
  }, [data, range?.join()]);
  return html`<div class="chart" ref=${place} role="img" aria-label=${names.join(", ")}></div>`;
}

// The curves of the runs that are drawn: one metric, one line for each run.
function Curve({ facts, runs, first, title }) {
  const all = runs.map((one) => facts.curves[one.id]);
  const names = [...new Set(all.flatMap((curves) => Object.keys(curves)))];
  const [wanted, setWanted] = useState(null);
  const [log, setLog] = useState(false);
  const [whole, setWhole] = useState(false);
  const [smooth, setSmooth] = useState(0);
  const name = names.includes(wanted) ? wanted : first.map((kind) => names.find((one) => kind.test(one))).find(Boolean) ?? names[0];
  const lines = all.map((curves) => new Map(curves[name] ?? []));
  const key = JSON.stringify(all.map((curves) => curves[name] ?? []));
  const x = useMemo(() => [...new Set(lines.flatMap((line) => [...line.keys()]))].sort((one, other) => one - other), [key]);
  const range = useMemo(() => findRange(lines.map((line) => [...line.values()])), [key]);
  const negative = runs.find((_, at) => [...lines[at].values()].some((value) => value <= 0)); // a logarithm has no place for it
  const series = useMemo(() => lines.map((line) => x.map((step) => line.get(step) ?? null)), [key]);
  if (!names.length) return html`<p class="faint">Nothing to draw yet: the first optimizer step brings the first point.</p>`;
  const labels = runs.length > 1 ? runs.map(nameOf) : [name];
  return html`<div class="row"><label>${title} <select value=${name} onChange=${(event) => setWanted(event.target.value)}>
      ${names.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label title=${negative && `${name} of ${nameOf(negative)} is not always above 0`}><input type="checkbox" disabled=${Boolean(negative)} checked=${log && !negative} onChange=${(event) => setLog(event.target.checked)} /> log scale</label>
      <label>smooth <input type="range" min="0" max="0.95" step="0.05" value=${smooth} onInput=${(event) => setSmooth(Number(event.target.value))} /></label>
      ${range && !(log && !negative) && html`<label><input type="checkbox" checked=${!whole} onChange=${(event) => setWhole(!event.target.checked)} /> leave out extreme values</label>`}
      ${all[0][name] && html`<span class="faint">last ${precise(all[0][name].at(-1)[1])}</span>`}</div>
    <${Chart} x=${x} series=${series} names=${labels} label="step" log=${log && !negative} range=${whole ? null : range} smooth=${smooth} />`;
}

// Sections

const isAlive = (session) => session.alive && session.silent_seconds < 60; // clients ask every ten seconds or so

function Tiles({ facts, rates }) {
  const waiting = facts.pending.sampling + facts.pending.training;
  const tiles = [
    ["tokens per second", rates.length ? short.format(rates.at(-1).total) : "–"], // until there are two readings,
    ["requests waiting or running", `${waiting}`],
    ["sessions alive", `${facts.sessions.filter(isAlive).length} of ${facts.sessions.length}`],
    ["memory of the server", bytes(facts.memory_bytes)],
    ["checkpoints on disk", bytes(facts.stored_bytes)],
    ["requests", short.format(facts.requests.total)],
  ];
  const { refused } = facts.requests;
  const [open, setOpen] = useState(false);
  return html`<div class="tiles">${tiles.map(([name, value]) => html`<div class="tile"><b>${value}</b><span>${name}</span></div>`)}
    <button class="tile" aria-expanded=${open} onClick=${() => setOpen(!open)}><b>${short.format(refused.reduce((total, [, , count]) => total + count, 0))}</b><span>requests refused ${refused.length ? "▾" : ""}</span></button></div>
    ${open && html`<section class="wide" id="refused"><h2>Requests refused</h2><div class="columns">${refused.map(([status, operation, count]) => html`<div>${status} ${operation}: ${count}</div>`)}</div>
      <span class="faint">${refused.length ? "What each answer said is in the error that its client raised." : "None since the server started."}</span></section>`}`;
}

// What each column of the runs is sorted by. Times count backwards, so that the newest is first.
const COLUMNS = {
  run: nameOf,
  project: (one) => one.project,
  "base model": (one) => one.base_model,
  rank: (one) => one.rank,
  steps: (one) => one.steps,
  "loss per token": (one) => one.metrics["loss per token"],
  reward: (one) => one.metrics.reward,
  begun: (one) => -one.begun_at,
  "last request": (one) => -one.last_request_at,
  state: (one) => one.state,
};
const NUMBERS = ["rank", "steps", "loss per token", "reward"];

function sortRuns(runs, { column, sign }) {
  const of = COLUMNS[column];
  const compare = (one, other) => (typeof one === "string" ? one.localeCompare(other) : one - other);
  return [...runs].sort((one, other) => (of(one) == null) - (of(other) == null) || sign * (of(one) == null ? 0 : compare(of(one), of(other))));
}

// The run that was begun last, of those with a curve if there are any.
function findNewest(runs) {
  const sorted = sortRuns(runs, { column: "begun", sign: 1 });
  return (sorted.find((one) => one.steps > 0) ?? sorted[0])?.id ?? "";
}

// The runs that have the text in what their row says of them.
function filterRuns(runs, text) {
  return runs.filter((one) => `${one.name ?? ""} ${one.id} ${one.base_model} ${one.project ?? ""} ${(one.tags ?? []).join(" ")}`.toLowerCase().includes(text.toLowerCase()));
}

function Runs({ facts, text, setText, left, run, follows, choose, beside, setBeside }) {
  const [order, setOrder] = useState({ column: "begun", sign: 1 });
  const [trained, setTrained] = useState(false);
  const [open, setOpen] = useState(false);
  const shown = sortRuns(left, order).filter((one) => (!trained || one.steps > 0) && (!open || one.state === "open"));
  const drawn = Object.keys(facts.curves).map((id) => left.find((one) => one.id === id)).filter(Boolean); // not what the filter leaves out
  const of = drawn.length === 1 ? ` of ${nameOf(drawn[0])}` : ""; // the legend names several
  const box = useRef(null);
  useEffect(() => { // a link may name a run that is far down
    const row = box.current?.querySelector(".chosen");
    if (row) box.current.scrollTop = row.offsetTop - box.current.clientHeight / 2;
  }, []);
  const rewarded = facts.runs.some((one) => one.metrics.reward != null);
  const lineOf = (one) => { const at = drawn.findIndex((other) => other.id === one.id); return at < 0 ? {} : { background: `var(${COLORS[at]})` }; };
  const sortBy = (column) => setOrder((before) => ({ column, sign: before.column === column ? -before.sign : 1 }));
  const toggle = (id) => setBeside(beside.includes(id) ? beside.filter((one) => one !== id) : [...beside, id].slice(-5));
  return html`<section class="wide" id="runs"><h2>Training runs</h2>
    ${facts.runs.length === 0 && html`<p class="faint">No run yet. A client starts one with create_lora_training_client; its curve appears here.</p>`}
    ${facts.runs.length > 0 && html`<div class="row"><label>filter <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <label><input type="checkbox" checked=${open} onChange=${(event) => setOpen(event.target.checked)} /> open</label>
      <label><input type="checkbox" checked=${trained} onChange=${(event) => setTrained(event.target.checked)} /> with steps</label>
      <label title="Draw the run that was begun last of those that the filter leaves, also when a newer one begins"><input type="checkbox" checked=${follows} onChange=${(event) => choose(event.target.checked ? "" : run)} /> follow the newest</label>
      <span class="faint">${shown.length} of ${facts.runs.length}</span></div>
      <div class="scroll" ref=${box}><table class="wraps"><thead><tr><th>compare</th>${Object.keys(COLUMNS).filter((column) => rewarded || column !== "reward").map((column) => html`<th class=${NUMBERS.includes(column) ? "number" : ""} aria-sort=${order.column !== column ? "none" : order.sign > 0 ? "ascending" : "descending"}><button class="sort" onClick=${() => sortBy(column)}>${column}</button></th>`)}</tr></thead>
      <tbody>${shown.map((one) => html`<tr class=${one.id === run ? "chosen" : ""}>
        <td data-name="compare">${one.id !== run && html`<input type="checkbox" aria-label=${`compare ${nameOf(one)}`} checked=${beside.includes(one.id)} onChange=${() => toggle(one.id)} />`}</td>
        <td class="id"><i class="swatch" style=${lineOf(one)}></i><button class="link" aria-pressed=${one.id === run} onClick=${() => choose(one.id)} title=${[one.name, one.id].filter(Boolean).join(", ")}>${nameOf(one)}</button>${(one.tags ?? []).map((tag) => html` <button class="tag" title=${tag} onClick=${() => setText(tag)}>${tag.replace(/=.*[0-9a-f]{8}-.*/, "")}</button>`)}</td>
        <td data-name="project">${one.project}</td><td>${one.base_model}</td>
        <td class="number" data-name="rank">${one.rank}</td><td class="number" data-name="steps">${one.steps}</td><td class="number" data-name="loss per token">${precise(one.metrics["loss per token"])}</td>${rewarded && html`<td class="number" data-name="reward">${precise(one.metrics.reward)}</td>`}
        <td data-name="begun" title=${new Date(one.begun_at * 1000).toLocaleString()}>${ago(facts.now - one.begun_at)}</td>
        <td data-name="last request">${ago(facts.now - one.last_request_at)}</td><td class=${one.state === "diverged" || one.state === "failed" ? "bad" : one.state === "open" && facts.now - one.last_request_at < 60 ? "good" : "faint"} title=${one.reason}>${one.state}</td></tr>`)}</tbody></table></div>
      ${shown.length === 0 && html`<p class="faint">No run matches.</p>`}`}
    </section>
    <section><h2>Loss${of}</h2><${Curve} key=${run} facts=${facts} runs=${drawn} title="metric" first=${[/^loss per token$/]} /></section>
    <section><h2>Rewards and other metrics${of}</h2>
      <${Curve} key=${run} facts=${facts} runs=${drawn} title="metric" first=${[/reward/i, /(^|\W|_)(eval|valid|val|test|held.?out)/i, /^grad_norm/]} />
      ${!rewarded && html`<p class="faint">Rewards appear here when they are reported: <code>tinker train --grpo</code> does so. Your own loop, with <code>ServiceClient(telemetry=True)</code> or <code>TINKER_TELEMETRY=1</code>, calls <code>training.get_telemetry().log("metrics", {"training_run_id": training.model_id, "step": step, "reward": reward})</code>.</p>`}</section>`;
}

function Checkpoints({ facts, sampleFrom }) {
  const isSampled = (one) => one.kind === "sampler_weights" && facts.models.some((model) => model.base_model === one.base_model);
  return html`<section class="wide" id="checkpoints"><h2>Checkpoints</h2>
    ${facts.checkpoints.length === 0 && html`<p class="faint">None yet.</p>`}
    ${facts.checkpoints.length > 0 && html`<div class="scroll"><table class="wraps"><thead><tr><th>path</th><th>base model</th><th>kind</th><th>saved</th><th class="number">size</th><th></th></tr></thead>
      <tbody>${facts.checkpoints.map((one) => html`<tr><td class="id" title=${one.path}>${brief(one.path)}</td><td>${one.base_model}</td><td>${one.kind}</td>
        <td>${ago(facts.now - one.created_at)}</td><td class="number">${bytes(one.nbytes)}</td>
        <td>${navigator.clipboard && html`<button onClick=${() => navigator.clipboard.writeText(one.path)}>Copy path</button> `}${isSampled(one) && html`<button onClick=${() => sampleFrom(0, one.path)}>Sample</button> <button onClick=${() => sampleFrom(1, one.path)}>Compare</button>`}</td></tr>`)}</tbody></table></div>`}
  </section>`;
}

async function* readStream(path, body, signal) {
  const answer = await ask(path, {
    method: "POST", body: JSON.stringify({ ...body, stream: true }), headers: { "Content-Type": "application/json" }, signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = "", part = await reader.read(); !part.done; part = await reader.read()) {
    const events = (held + part.value).split("\n\n");
    held = events.pop();
    for (const event of events.filter((one) => one.startsWith("data: ") && one !== "data: [DONE]")) {
      const value = JSON.parse(event.slice(6));
      if (value.error) throw new Error(value.error.message);
      yield value.choices[0]?.text ?? value.choices[0]?.delta?.content ?? "";
    }
  }
}

function Playground({ facts, chosen, choose, needKey }) {
  const [prompt, setPrompt] = useState("The ");
  const [options, setOptions] = useState({ max_tokens: 64, temperature: 1, seed: 1 });
  const [chat, setChat] = useState(false);
  const [texts, setTexts] = useState(["", ""]);
  const [running, setRunning] = useState(null);
  const models = [...facts.models.map((one) => one.base_model), ...facts.checkpoints.filter((one) => one.kind === "sampler_weights").map((one) => one.path)];
  const set = (side, change) => setTexts((before) => before.map((text, at) => (at === side ? change(text) : text)));
  const sampleSide = async (side, signal) => {
    set(side, () => "");
    try {
      const [path, given] = chat ? ["v1/chat/completions", { messages: [{ role: "user", content: prompt }] }] : ["v1/completions", { prompt }];
      for await (const text of readStream(path, { model: chosen[side], ...given, ...options }, signal)) set(side, (before) => before + text);
    } catch (error) {
      if (error instanceof NeedsKey) needKey();
      else if (error.name !== "AbortError") set(side, (before) => `${before}\n[${error.message}]`);
    }
  };
  const run = async () => {
    const stop = new AbortController();
    setRunning(stop);
    await Promise.all([0, 1].filter((side) => chosen[side]).map((side) => sampleSide(side, stop.signal)));
    setRunning(null);
  };
  const number = (name, step) => html`<label>${name} <input type="number" step=${step} min="0" value=${options[name]}
    onInput=${(event) => setOptions({ ...options, [name]: event.target.value === "" ? undefined : Number(event.target.value) })} /></label>`;
  return html`<section class="wide" id="playground"><h2>Sample and compare</h2>
    <textarea aria-label="prompt" value=${prompt} onInput=${(event) => setPrompt(event.target.value)}></textarea>
    <div class="row">${number("max_tokens", 1)} ${number("temperature", 0.1)} ${number("seed", 1)}
      <label title="In the chat template of the model's tokenizer; without one, as the lines User: and Assistant:"><input type="checkbox" checked=${chat} onChange=${(event) => setChat(event.target.checked)} /> as a chat message</label>
      <button class="main" disabled=${running || !prompt} onClick=${run}>Sample</button>
      ${running && html`<button onClick=${() => running.abort()}>Stop</button>`}</div>
    <div class="pair">${[0, 1].map((side) => html`<div><select aria-label=${`model ${side + 1}`} title=${chosen[side]} value=${chosen[side]} onChange=${(event) => choose(side, event.target.value)}>
      ${side === 1 && html`<option value="">nothing to compare with</option>`}${models.map((one) => html`<option value=${one} title=${one}>${labelOf(one, facts.runs)}</option>`)}</select>
      <pre aria-live="polite">${texts[side]}</pre></div>`)}</div></section>`;
}

function Usage({ facts }) {
  const [prices, setPrices] = useState(() => JSON.parse(localStorage.getItem(PRICES) ?? "{}"));
  const change = (kind, value) => {
    const next = { ...prices, [kind]: value };
    setPrices(next);
    localStorage.setItem(PRICES, JSON.stringify(next));
  };
  const cost = (tokens) => { // of what has a price
    const priced = tokens.filter((one) => prices[one.kind]);
    return priced.length ? priced.reduce((sum, one) => sum + (one.count / 1e6) * Number(prices[one.kind]), 0).toFixed(4) : "–";
  };
  return html`<section><h2>Usage and cost</h2><div class="scroll"><table><thead><tr><th>tokens of</th><th>base model</th><th class="number">count</th><th class="number">cost</th></tr></thead>
    <tbody>${facts.tokens.map((one) => html`<tr><td>${KINDS[one.kind] ?? one.kind}</td><td>${one.base_model}</td><td class="number">${one.count.toLocaleString("en")}</td>
      <td class="number">${cost([one])}</td></tr>`)}
    <tr><td>all</td><td></td><td></td><td class="number"><b>${cost(facts.tokens)}</b></td></tr></tbody></table></div>
    <p class="faint">Since the server started, or earlier with --durability step. It has no prices: enter those of a service, for a million tokens each, to see what this would cost there.</p>
    <div class="row">${Object.entries(KINDS).map(([kind, name]) => html`<label>${name} <input type="number" min="0" step="0.01" value=${prices[kind] ?? ""}
      onInput=${(event) => change(kind, event.target.value)} /></label>`)}</div></section>`;
}

function Throughput({ rates }) {
  const x = useMemo(() => rates.map((one) => one.at - rates.at(-1).at), [rates]);
  const series = useMemo(() => Object.keys(KINDS).map((kind) => rates.map((one) => one[kind] ?? 0)), [rates]);
  return html`<section><h2>Throughput</h2>${rates.length ? html`<${Chart} x=${x} series=${series} names=${Object.values(KINDS)} label="seconds ago" />
    <p class="faint">Tokens per second since this page was opened.</p>` : html`<p class="faint">Measured from now on.</p>`}</section>`;
}

function Sessions({ facts, dead }) {
  return html`<section class="wide"><h2>Sessions and queue</h2>
    <div class="scroll"><table id="queue"><thead><tr><th>waiting or running for</th><th class="number">training</th><th class="number">sampling</th></tr></thead>
      <tbody>${facts.models.map((one) => html`<tr><td>${one.base_model}${one.restarts.length > 0 && ` (${one.restarts.length} replicas, ${one.restarts.reduce((sum, count) => sum + count, 0)} restarts)`}</td><td class="number">${one.pending.training}</td><td class="number">${one.pending.sampling}</td></tr>`)}</tbody></table></div>
    ${facts.sessions.length > 0 && html`<div class="scroll"><table class="wraps"><thead><tr><th>session</th><th>project</th><th class="number">runs</th><th class="number">samplers</th><th>begun</th><th>last seen</th><th>client</th></tr></thead>
      <tbody>${facts.sessions.map((one) => html`<tr><td class="id" title=${one.id}>${one.name ?? brief(one.id)}</td><td data-name="project">${one.project}</td><td class="number" data-name="runs">${one.runs}</td>
        <td class="number" data-name="samplers">${one.samplers}</td><td data-name="begun">${ago(facts.now - one.created_at)}</td><td data-name="last seen" class=${isAlive(one) && !dead ? "good" : "faint"}>${!one.alive ? "ended" : dead ? "not known" : ago(one.silent_seconds)}</td><td>${one.sdk}</td></tr>`)}</tbody></table></div>`}</section>`;
}

function KeyForm({ wrong, done }) {
  const [key, setKey] = useState("");
  const submit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, key.trim());
    done();
  };
  return html`<form class="key" onSubmit=${submit}><section><h2>This server wants its key</h2>
    ${wrong && html`<p class="bad">The server does not take this key.</p>`}
    <div class="row"><input type="password" aria-label="key" autocomplete="off" autofocus value=${key} onInput=${(event) => setKey(event.target.value)} />
    <button class="main" disabled=${!key.trim()}>Show</button></div><p class="faint">It is sent to this server alone, as a header, and forgotten with this tab.</p></section></form>`;
}

// The whole

const sum = (facts, kind) => facts.tokens.filter((one) => one.kind === kind).reduce((total, one) => total + one.count, 0);

function rate(before, facts) {
  const seconds = facts.clock - before.clock;
  const kinds = Object.keys(KINDS).map((kind) => [kind, Math.max(0, sum(facts, kind) - sum(before, kind)) / seconds]);
  return { at: facts.clock, total: kinds.reduce((total, [, value]) => total + value, 0), ...Object.fromEntries(kinds) };
}

// Which runs are drawn is kept behind the # of the address, so that it survives a reload and can be sent to somebody.
function readSelection() {
  const kept = new URLSearchParams(location.hash.slice(1));
  return { run: kept.get("run") ?? "", beside: kept.getAll("beside") };
}
const writeSelection = (run, beside) => new URLSearchParams([["run", run], ...beside.map((id) => ["beside", id])]).toString();

function Page() {
  const [facts, setFacts] = useState(null);
  const [rates, setRates] = useState([]);
  const [selected, setSelected] = useState(() => readSelection());
  const { beside } = selected;
  const [text, setText] = useState("");
  const left = filterRuns(facts?.runs ?? [], text);
  const isLeft = (id) => !facts || left.some((one) => one.id === id);
  const run = isLeft(selected.run) ? selected.run : findNewest(left); // without one to draw the newest is followed
  const setRun = (id) => setSelected((before) => ({ run: id, beside: before.beside.filter((one) => one !== id) }));
  const setBeside = (ids) => setSelected({ run, beside: ids });
  const [chosen, setChosen] = useState(["", ""]);
  const [fault, setFault] = useState(null);
  const [round, setRound] = useState(0);
  const last = useRef(null);
  const query = writeSelection(run, beside.filter(isLeft));
  useEffect(() => {
    let timer = null;
    let ended = false;
    history.replaceState(null, "", selected.run ? `#${writeSelection(selected.run, beside)}` : location.pathname);
    const load = async () => {
      try {
        if (!document.hidden || !last.current) {
          const found = await (await ask(`overview?${query}`)).json();
          if (ended) return;
          if (!last.current || found.clock > last.current.clock + 1) { // a choice asks at once, which would be a rate of few requests
            if (last.current) setRates((before) => [...before.slice(-149), rate(last.current, found)]);
            last.current = found;
          }
          setFacts({ ...found, curves: { [run]: found.curves, ...found.beside } });
          setFault(null);
          setChosen((before) => (before[0] ? before : [found.models[0].base_model, before[1]]));
        }
      } catch (error) {
        if (ended) return;
        setFault(error);
        if (error instanceof NeedsKey) return;
      }
      timer = setTimeout(load, EVERY_MS);
    };
    load();
    return () => { ended = true; clearTimeout(timer); };
  }, [query, selected, round]);
  const needKey = () => setFault(new NeedsKey());
  if (fault instanceof NeedsKey) return html`<${KeyForm} wrong=${sessionStorage.getItem(KEY)} done=${() => { setFault(null); setRound(round + 1); }} />`;
  const choose = (side, name) => setChosen((before) => before.map((one, at) => (at === side ? name : one)));
  const sampleFrom = (side, name) => { choose(side, name); document.getElementById("playground").scrollIntoView({ behavior: "smooth" }); };
  return html`<header><h1><img src="assets/icon.svg" alt="" /> tinker</h1><span class="faint">${facts?.models.map((one) => one.base_model).join(", ") ?? "connecting"}</span>
    <nav><a href="docs">API</a></nav></header>
    <main>${fault && html`<div class="notice" role="alert">The server does not answer: ${fault.message}</div>`}
    ${facts && html`<${Tiles} facts=${facts} rates=${rates} /><${Runs} facts=${facts} text=${text} setText=${setText} left=${left} run=${run} follows=${!selected.run} choose=${setRun} beside=${beside} setBeside=${setBeside} />
      <${Checkpoints} facts=${facts} sampleFrom=${sampleFrom} />
      <${Playground} facts=${facts} chosen=${chosen} choose=${choose} needKey=${needKey} />
      <${Throughput} rates=${rates} /><${Usage} facts=${facts} /><${Sessions} facts=${facts} dead=${Boolean(fault)} />`}</main>`;
}

const place = document.getElementById("page");
place.replaceChildren();
render(html`<${Page} />`, place);
