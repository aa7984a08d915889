/* The page: a list of runs, plots of those that are selected, live.
 *
 * What the server sends is shown as text, never as markup. A number that was not measured is missing, and
 * its plot is missing, too. */
'use strict';

const palette = {
  light: ['#0b7285', '#d9480f', '#5f3dc4', '#2b8a3e', '#c2255c', '#1864ab', '#846358', '#5c940d'],
  dark: ['#3bc9db', '#ff922b', '#b197fc', '#69db7c', '#f783ac', '#74c0fc', '#e0b69f', '#c0eb75'] };
const state = { list: null, data: new Map(), selected: [], touched: false, smooth: 0.6, x: 'step',
  logX: false, logY: false, theme: 'auto' };
const $ = id => document.getElementById(id);
const asked = new URLSearchParams(location.search);

/* The token is in a cookie now; in the address it would be shared with every screenshot. */
if (asked.has('token')) {
  asked.delete('token');
  history.replaceState(null, '', location.pathname + (asked.size ? '?' + asked : '') + location.hash);
}

/* ---- Numbers for people ---- */

/* Each takes a number of digits, too: labels of an axis may need more than the usual ones (plot.js). */
function count(v, digits = 3) {
  const units = ['', 'k', 'M', 'G', 'T'];
  let u = 0;
  while (Math.abs(v) >= 999.5 && u < 4) { v /= 1000; u++; }
  return +v.toPrecision(u === 0 && Number.isInteger(v) ? 4 : digits) + units[u];
}
function plain(v, digits = 4) {
  return v === 0 ? '0'
    : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? (+v.toExponential(digits - 3)).toExponential()
    : String(+v.toPrecision(digits));
}
function share(v) { return (100 * v).toFixed(1) + ' %'; }
function percent(v, digits = 3) { return +(100 * v).toPrecision(digits) + ' %'; }
function bytes(v, digits = 4) {
  const [size, unit] = v >= 2 ** 30 ? [2 ** 30, 'GiB'] : v >= 2 ** 20 ? [2 ** 20, 'MiB']
    : v >= 1024 ? [1024, 'KiB'] : [1, 'B'];
  return +(v / size).toPrecision(digits) + ' ' + unit;
}
function joules(v, digits = 3) {
  const [size, unit] = v >= 0.1 ? [1, 'J'] : v >= 1e-4 ? [1e-3, 'mJ'] : [1e-6, 'µJ'];
  return +(v / size).toPrecision(digits) + ' ' + unit;
}
function watts(v, digits) { return (digits ? +v.toPrecision(digits) : Math.round(v)) + ' W'; }
/* There is nothing between two steps. */
function stepText(v, digits) {
  return Math.abs(v - Math.round(v)) > 1e-6 ? '' : count(Math.round(v), digits);
}
function timeText(s, digits = 4) {
  s = +s.toFixed(digits - 4);
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, two = n => String(n).padStart(2, '0');
  const [whole, part] = String(+(s % 60).toFixed(digits - 4)).split('.');
  const seconds = two(whole) + (part ? '.' + part : '');
  return h ? `${h}:${two(m)}:${seconds}` : `${m}:${seconds}`;
}
const known = v => v !== undefined && v !== null && Number.isFinite(v);

/* The task says what it counts, and which measures it has. */
function measureName(key) { return key.replace(/^val_/, '').replace(/_/g, ' '); }

function make(tag, cls, text) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

/* ---- Theme ---- */

const systemDark = matchMedia('(prefers-color-scheme: dark)');
function isDark() { return state.theme === 'dark' || (state.theme === 'auto' && systemDark.matches); }
function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light';
  $('theme').textContent = 'theme: ' + state.theme;
  showRuns();
  showPlots();
}
function colorOf(name) {
  return palette[isDark() ? 'dark' : 'light'][Math.max(0, state.selected.indexOf(name)) % 8];
}
function shade(i) { return palette[isDark() ? 'dark' : 'light'][i % 8]; }

/* ---- GPUs and host ---- */

function meter(name, share, text) {
  const row = make('div', 'meter'), track = make('div', 'track'), fill = make('div', 'fill');
  fill.style.width = known(share) ? Math.min(100, 100 * share) + '%' : '0';
  track.append(fill);
  row.append(make('span', 'soft', name), track, make('span', 'num', text));
  return row;
}

function gpuCard(g, i) {
  const card = make('div', 'device'), top = make('div', 'top');
  top.append(make('div', 'name', `${i}  ${g.name}`),
    make('span', '', known(g.temp_c) ? g.temp_c + ' °C' : ''));
  card.append(top, meter('utilised', g.util, known(g.util) ? percent(g.util) : 'n/a'));
  card.append(meter('tensor', g.tensor_active, known(g.tensor_active) ? percent(g.tensor_active) : 'n/a'));
  card.append(meter('memory', g.mem_bytes / g.mem_total_bytes,
    known(g.mem_bytes) ? bytes(g.mem_bytes) : 'n/a'));
  card.append(meter('power', g.power_w / g.power_limit_w, known(g.power_w) ? watts(g.power_w) : 'n/a'));
  const who = (g.processes || [])
    .map(p => `${p.name === '?' ? 'pid' : p.name} ${p.pid}${known(p.bytes) ? ' ' + bytes(p.bytes) : ''}`)
    .join(', ');
  const held = g.clock_reasons && g.clock_reasons !== 'none' ? `clock held by ${g.clock_reasons}` : '';
  const note = [known(g.sm_mhz) ? g.sm_mhz + ' MHz' : '', held, who].filter(Boolean).join(' · ');
  if (note) card.append(make('div', 'note', note));
  return card;
}

function showMachine() {
  const h = state.list.host, card = make('div', 'device'), top = make('div', 'top');
  top.append(make('div', 'name', h.cpu_name), make('span', '', h.cpus + ' CPUs'));
  card.append(top, meter('busy', h.cpu, known(h.cpu) ? percent(h.cpu) : 'n/a'));
  card.append(meter('memory', h.ram_bytes / h.ram_total_bytes,
    known(h.ram_bytes) ? bytes(h.ram_bytes) : 'n/a'));
  if (h.no_gpu) card.append(make('div', 'note', `no GPU: ${h.no_gpu}`));
  $('machine').replaceChildren(...state.list.gpus.map(gpuCard), card);
  $('host').textContent = h.name;
}

/* ---- The list of runs ---- */

function showRuns() {
  if (!state.list) return;
  const box = $('runs'), have = new Map([...box.children].map(e => [e.dataset.name, e]));
  $('count').textContent = state.list.runs.length;
  box.replaceChildren(...state.list.runs.map(r => {
    let b = have.get(r.name);
    if (!b) {
      b = make('button', 'run');
      b.type = 'button';
      b.dataset.name = r.name;
      b.append(make('span', 'dot'), make('span', 'name'), make('span', 'state'), make('span', 'sub'),
        make('span', 'progress'));
      b.querySelector('.progress').append(make('i'));
      b.addEventListener('click', () => toggle(r.name));
    }
    const on = state.selected.includes(r.name);
    b.setAttribute('aria-pressed', on);
    b.style.setProperty('--run', on ? colorOf(r.name) : 'var(--soft)');
    b.querySelector('.name').textContent = r.name;
    b.querySelector('.state').textContent = r.state;
    b.querySelector('.state').className = 'state ' + r.state;
    const parts = [`step ${known(r.step) ? r.step : 0}${r.steps ? '/' + r.steps : ''}`];
    if (r.measure !== 'val_loss' && known(r[r.measure]))
      parts.push(`${measureName(r.measure)} ${plain(r[r.measure])}`);
    else if (known(r.loss)) parts.push('loss ' + r.loss.toFixed(3));
    if (known(r.per_s)) parts.push(`${count(r.per_s)} ${r.units}/s`);
    b.querySelector('.sub').textContent = parts.join('  ·  ');
    b.querySelector('.progress i').style.width =
      r.steps ? Math.min(100, 100 * (r.step || 0) / r.steps) + '%' : '0';
    return b;
  }));
}

function toggle(name) {
  state.touched = true;
  state.selected = state.selected.includes(name)
    ? state.selected.filter(n => n !== name)
    : [...state.selected, name].slice(-8);
  history.replaceState(null, '', '#' + state.selected.map(encodeURIComponent).join(','));
  showRuns();
  follow();
  showAll();
}

/* ---- Data ---- */

/* Rows of the newest known step on come again: an evaluation may have joined it. */
function merge(d, part) {
  const from = d.lastAsked;
  const keep = from > 0 ? d.columns.step.filter(s => s < from).length : 0;
  const keys = new Set([...Object.keys(d.columns), ...Object.keys(part.columns)]);
  const n = (part.columns.step || []).length;
  for (const k of keys) {
    const old = (d.columns[k] || []).slice(0, keep);
    while (old.length < keep) old.push(null);
    d.columns[k] = old.concat(part.columns[k] || new Array(n).fill(null));
  }
  for (const k of ['waterfall', 'plain', 'samples', 'texts']) if (part[k]) d[k] = part[k];
  if (part.log) mergeLog(d, part.log);
}

/* What the log has behind what is known. A page shows the newest 64 KiB, as the server sends at first. */
function mergeLog(d, log) {
  if (log.from === d.logTo && !log.text) return;
  const known = log.from === d.logTo && log.from > 0 ? d.log : '';
  const text = known + log.text, most = 65536;
  d.log = text.length > most ? text.slice(text.indexOf('\n', text.length - most) + 1) : text;
  d.logTo = log.to;
  d.texts = { ...d.texts, 'log.txt': d.log };
}

async function load(name) {
  const d = state.data.get(name) || { columns: { step: [] }, busy: false, epoch: null, lastAsked: 0,
    logTo: 0 };
  state.data.set(name, d);
  if (d.busy) { d.again = true; return; }
  d.busy = true;
  try {
    const n = d.columns.step.length;
    d.lastAsked = n ? d.columns.step[n - 1] : 0;
    const ask = async () => (await fetch(
      `api/runs/${encodeURIComponent(name)}?from=${d.lastAsked}&log=${d.logTo}`)).json();
    let part = await ask();
    if (d.epoch !== null && part.epoch !== d.epoch) {
      d.columns = { step: [] };
      d.lastAsked = d.logTo = 0;
      part = await ask();
    }
    d.epoch = part.epoch;
    merge(d, part);
    showAll();
  } catch (e) {
    if (!state.data.get(name).columns.step.length) state.data.delete(name);
  } finally {
    d.busy = false;
    if (d.again) { d.again = false; load(name); }
  }
}

/* Asks for what is new of the selected runs. */
function follow() {
  for (const name of state.selected) {
    const r = state.list && state.list.runs.find(q => q.name === name), d = state.data.get(name);
    if (!r) continue;
    const mark = [r.step, r[r.measure], r.epoch, r.facts, r.state, r.log_bytes].join();
    if (d && d.mark === mark) continue;
    load(name);
    if (state.data.get(name)) state.data.get(name).mark = mark;
  }
}

/* A name in the address; what is no encoding stands for itself. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch (e) { return text; }
}

function onRuns(text) {
  state.list = JSON.parse(text);
  if (!state.touched) {
    const named = location.hash.slice(1).split(',').map(decoded)
      .filter(n => state.list.runs.some(r => r.name === n));
    if (named.length) { state.selected = named.slice(0, 8); state.touched = true; }
    else state.selected = state.list.runs.slice(0, 1).map(r => r.name);
  }
  showMachine();
  showRuns();
  follow();
  showTiles();
  showEmpty();
}

/* A browser tries again by itself where nobody answers, but not after a refusal: too many pages, a proxy
 * whose server is away. */
function connect() {
  const source = new EventSource('events');
  source.addEventListener('open', () => {
    $('link').textContent = 'live';
    $('link').className = 'link live';
  });
  source.addEventListener('error', () => {
    $('link').textContent = 'no connection';
    $('link').className = 'link lost';
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
  source.addEventListener('runs', e => onRuns(e.data));
}

/* ---- Plots ---- */

const charts = [
  { title: 'Loss', keys: [['loss', ''], ['val_loss', 'validation']], format: plain, smooth: true },
  { title: 'Rate', keys: [['per_s', '']], format: count, smooth: true, unit: r => r.units + '/s' },
  { title: 'MFU', keys: [['mfu', '']], format: percent, smooth: true },
  { title: 'GPU activity', keys: [['tensor_active', 'tensor'], ['sm_active', 'SM'], ['dram_active', 'DRAM'],
    ['gpu_util', 'utilisation']], format: percent, smooth: true, single: true },
  { title: 'Power', keys: [['power_w', ''], ['power_limit_w', 'limit']], format: watts, smooth: true },
  { title: 'GPU memory', keys: [['gpu_mem_bytes', ''], ['gpu_mem_total_bytes', 'all']], format: bytes },
  { title: 'Gradient norm', keys: [['grad_norm', '']], format: plain, smooth: true },
  { title: 'Learning rate', keys: [['lr', '']], format: plain },
  { title: 'CPU cores busy', keys: [['own_cpu', '']], format: plain, smooth: true },
  { title: 'Host memory', keys: [['rss_bytes', '']], format: bytes },
  { title: 'Energy per unit', keys: [['j_per_unit', '']], format: joules, smooth: true },
];

/* Columns that no chart above shows, and that the server does not call plain. The task's measures stand
 * behind its loss, the one that counts first. Whatever else the task reports comes last. */
const shownKeys = new Set(charts.flatMap(c => c.keys.map(([k]) => k)));
function addCharts() {
  for (const name of state.selected) {
    const d = state.data.get(name);
    if (!d || !d.plain) continue; /* still on its way */
    for (const key of Object.keys(d.columns)) {
      if (d.plain.includes(key) || shownKeys.has(key)) continue;
      shownKeys.add(key);
      const r = state.list && state.list.runs.find(q => q.name === name) || {}, rare = key.startsWith('val_');
      charts.push({ title: rare ? 'Validation ' + measureName(key) : measureName(key), keys: [[key, '']],
        format: plain, smooth: !rare, note: (r.larger || []).includes(key) ? 'larger is better' : '',
        rank: !rare ? 3 : key === r.measure ? 0 : 1 });
    }
  }
}

/* Exponential mean that begins at the first value; weight 0 changes nothing. */
function smoothed(y, weight) {
  let sum = 0, norm = 0;
  return y.map(v => {
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

function points(d, key) {
  const col = d.columns[key], at = d.columns[state.x === 'time' ? 'time_s' : 'step'], x = [], y = [];
  for (let i = 0; col && at && i < col.length; i++) {
    if (col[i] === null || at[i] === null || at[i] === undefined) continue;
    if (x.length && at[i] <= x[x.length - 1]) continue;
    x.push(at[i]);
    y.push(col[i]);
  }
  return { x, y };
}

function linesOf(chart) {
  const lines = [], several = state.selected.length > 1;
  for (const name of state.selected) {
    const d = state.data.get(name);
    if (!d) continue;
    chart.keys.forEach(([key, label], k) => {
      if (several && chart.single && k > 0) return;
      const p = points(d, key);
      if (!p.x.length) return;
      const rare = key.startsWith('val_');
      const color = chart.single && !several ? shade(k) : rare && !several ? shade(1) : colorOf(name);
      const caption = [several ? name : '', label].filter(Boolean).join(' ');
      const soft = chart.smooth && !rare && !(k > 0 && !chart.single) && state.smooth > 0;
      if (soft) lines.push({ ...p, color, alpha: 0.22, width: 1, quiet: true });
      lines.push({ x: p.x, y: soft ? smoothed(p.y, state.smooth) : p.y, color, width: rare ? 1.4 : 1.8,
        points: rare && p.x.length < 60,
                   dash: k > 0 && !rare && !chart.single || rare && several ? [5, 4] : undefined, caption });
    });
  }
  return lines;
}

/* The value of a line at x: that of the nearest point before it. */
function valueAt(line, x) {
  let lo = 0, hi = line.x.length - 1;
  if (hi < 0 || x < line.x[0]) return null;
  while (lo < hi) { const mid = (lo + hi + 1) >> 1; if (line.x[mid] <= x) lo = mid; else hi = mid - 1; }
  return line.y[lo];
}

function legend(chart, x) {
  const items = chart.lines.filter(l => !l.quiet).map(l => {
    const v = x === null ? l.y[l.y.length - 1] : valueAt(l, x), item = make('span'), dot = make('i');
    dot.style.background = l.color;
    item.append(dot, (l.caption ? l.caption + ' ' : '') + (v === null ? '' : chart.format(v)));
    return item;
  });
  chart.legend.replaceChildren(...items);
  chart.now.textContent = x === null ? '' : (state.x === 'time' ? timeText(x) : 'step ' + Math.round(x));
}

function build(chart) {
  chart.card = make('section', 'card plot');
  const head = make('div', 'head'), area = make('div', 'area');
  chart.head = make('h3', '', chart.title + (chart.note ? ', ' + chart.note : ''));
  chart.now = make('span', 'now');
  chart.legend = make('div', 'legend');
  head.append(chart.head, chart.now);
  chart.card.append(head, area, chart.legend);
  chart.card.dataset.title = chart.title;
  const rank = chart.title === 'Loss' ? -1 : chart.rank ?? 2;
  chart.card.dataset.rank = rank;
  $('plots').insertBefore(chart.card, [...$('plots').children].find(e => +e.dataset.rank > rank) || null);
  chart.plot = makePlot(area, x => legend(chart, x));
}

function showPlots() {
  addCharts();
  for (const chart of charts) {
    chart.lines = linesOf(chart);
    if (!chart.card && chart.lines.length) build(chart);
    if (!chart.card) continue;
    chart.card.hidden = !chart.lines.length;
    if (chart.card.hidden) continue;
    const r = state.list && state.list.runs.find(q => q.name === state.selected[0]);
    const units = new Set(state.selected.map(n => state.list && state.list.runs.find(q => q.name === n))
      .filter(Boolean).map(r => r.units));
    if (chart.unit && r)
      chart.head.textContent = `${chart.title}, ${units.size > 1 ? 'in own units/s' : chart.unit(r)}`;
    chart.plot.draw(chart.lines, { logX: state.logX, logY: state.logY, format: chart.format,
      binary: chart.format === bytes, formatX: state.x === 'time' ? timeText : stepText });
    legend(chart, null);
  }
}

/* ---- Tiles, waterfall, samples, texts ---- */

/* Several runs: a row each. */
function showTable() {
  const columns = [['step', r => r.step ?? 0], ['loss', r => known(r.loss) && r.loss.toFixed(4)],
    ['validation', r => known(r[r.measure]) && `${measureName(r.measure)} ${plain(r[r.measure])}`],
    ['rate', r => known(r.per_s) && `${count(r.per_s)} ${r.units}/s`],
    ['MFU', r => known(r.mfu) && percent(r.mfu)],
    ['tensor', r => known(r.tensor_active) && percent(r.tensor_active)],
    ['power', r => known(r.power_w) && watts(r.power_w)],
    ['energy', r => known(r.j_per_unit) && joules(r.j_per_unit) + '/' + r.unit],
    ['kWh', r => known(r.kwh) && plain(r.kwh)], ['time', r => known(r.time_s) && timeText(r.time_s)]];
  const runs = state.selected.map(n => state.list.runs.find(r => r.name === n)).filter(Boolean);
  const shown = columns.filter(([, f]) => runs.some(r => f(r) !== false));
  const table = make('table', 'compare'), head = make('tr');
  head.append(make('th', '', 'run'), ...shown.map(([k]) => make('th', '', k)));
  table.append(head);
  for (const r of runs) {
    const row = make('tr'), name = make('td', 'who'), dot = make('i', 'dot0');
    dot.style.background = colorOf(r.name);
    name.append(dot, r.name);
    row.append(name, ...shown.map(([, f]) => make('td', '', f(r) === false ? 'n/a' : f(r))));
    table.append(row);
  }
  const card = make('div', 'card scroll');
  card.append(table);
  $('tiles').replaceChildren(card);
}

/* The best value so far of the measure that counts, and when it was. */
function bestTile(r) {
  const c = (state.data.get(r.name) || { columns: {} }).columns, col = (r.measure && c[r.measure]) || [];
  let at = -1;
  col.forEach((v, i) => {
    if (known(v) && (at < 0 || (r.larger_is_better ? v > col[at] : v < col[at]))) at = i;
  });
  return [`best ${measureName(r.measure || '')}` + (at < 0 ? '' : `, step ${c.step[at]}`),
    at >= 0 && plain(col[at])];
}

function showTiles() {
  $('tiles').className = state.selected.length > 1 ? 'table' : 'tiles';
  if (state.list && state.selected.length > 1) { showTable(); return; }
  const r = state.list && state.list.runs.find(q => q.name === state.selected[0]);
  const rows = !r ? [] : [
    [(r.steps ? `of ${count(r.steps)} ` : '') + (r.units === 'steps' ? 'updates' : 'steps'),
      String(r.step || 0)],
    ['loss', known(r.loss) && r.loss.toFixed(4)],
    ...Object.keys(r).filter(k => k.startsWith('val_')).map(k =>
      ['validation ' + measureName(k), known(r[k]) && plain(r[k])]),
    bestTile(r),
    [`${r.units}/s`, known(r.per_s) && count(r.per_s)],
    ['MFU', known(r.mfu) && percent(r.mfu)],
    ['tensor active', known(r.tensor_active) && percent(r.tensor_active)],
    ['power', known(r.power_w) && watts(r.power_w)],
    [`per ${r.unit}`, known(r.j_per_unit) && joules(r.j_per_unit)],
    ['kWh', known(r.kwh) && plain(r.kwh)], ['training time', known(r.time_s) && timeText(r.time_s)],
    ['time left', r.state === 'training' && r.steps && r.step && known(r.time_s) &&
      timeText(r.time_s / r.step * (r.steps - r.step))],
  ];
  $('tiles').replaceChildren(...rows.filter(([, v]) => v).map(([k, v]) => {
    const t = make('div', 'tile');
    t.append(make('b', '', v), make('span', '', k));
    return t;
  }));
}

function showWaterfall() {
  const body = $('waterfall').querySelector('.body'), seen = new Map();
  body.replaceChildren();
  for (const name of state.selected) {
    const parts = (state.data.get(name) || {}).waterfall || [];
    if (!parts.length) continue;
    const fall = make('div', 'fall'), bar = make('div', 'bar');
    if (state.selected.length > 1) fall.append(make('div', 'who', name));
    for (const p of parts) {
      const i = make('i');
      i.style.width = 100 * p.share + '%';
      i.style.background = p.color;
      i.title = `${p.name}: ${share(p.share)}`;
      bar.append(i);
      if (!seen.has(p.name)) seen.set(p.name, p);
    }
    fall.append(bar);
    body.append(fall);
  }
  const keys = make('div', 'keys');
  for (const p of seen.values()) {
    const item = make('div'), dot = make('i', 'dot0');
    dot.style.background = p.color;
    item.append(dot, make('span', '', p.name + ' '));
    if (state.selected.length === 1) item.append(make('b', '', share(p.share) + ' '));
    item.append(make('span', 'soft', p.note));
    keys.append(item);
  }
  body.append(keys);
  $('waterfall').hidden = seen.size === 0;
}

function showSamples() {
  const body = $('samples').querySelector('.body'), items = [];
  for (const name of state.selected) {
    for (const s of ((state.data.get(name) || {}).samples || [])
      .slice(0, state.selected.length > 1 ? 2 : 6)) {
      const e = make('div', 'sample');
      e.append(make('div', 'soft', `${state.selected.length > 1 ? name + ', ' : ''}step ${s.step}`));
      const pre = make('pre');
      pre.append(make('b', '', s.prompt || ''), s.text || '');
      if (s.image && s.image.startsWith('data:image/')) {
        const img = make('img', 'picture');
        img.src = s.image;
        img.alt = `sample of step ${s.step}`;
        e.append(img);
      }
      if (s.text || s.prompt) e.append(pre);
      items.push(e);
    }
  }
  body.replaceChildren(...items);
  $('samples').hidden = !items.length;
}

/* A text that is read to its end follows what is added. */
function grow(pre, text) {
  if (pre.textContent === text) return;
  const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  pre.textContent = text;
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

function showTexts() {
  const d = state.data.get(state.selected[0]), box = $('texts');
  const names = { 'plan.txt': 'Plan', 'machine.txt': 'Machine', 'recipe.yaml': 'Recipe', 'log.txt': 'Log' };
  if (box.dataset.run === state.selected[0] && d && d.textsShown === d.texts) return;
  const open = new Set([...box.querySelectorAll('details[open]')].map(e => e.dataset.file));
  const files = Object.entries((d && d.texts) || {}), shown = [...box.querySelectorAll('details')];
  const same = shown.map(e => e.dataset.file).join() === files.map(f => f[0]).join();
  if (same && box.dataset.run === state.selected[0]) {
    /* What is open and read stays. */
    files.forEach(([, text], i) => grow(shown[i].querySelector('pre'), text));
    if (d) d.textsShown = d.texts;
    return;
  }
  box.replaceChildren(...files.map(([file, text]) => {
    const e = make('details', 'card');
    e.dataset.file = file;
    e.open = open.has(file);
    e.append(make('summary', '', names[file] || file), make('pre', '', text));
    return e;
  }));
  box.dataset.run = state.selected[0] || '';
  if (d) d.textsShown = d.texts;
}

function showEmpty() { $('empty').hidden = state.selected.length > 0; }

let pending = false;
function showAll() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    showEmpty();
    showTiles();
    showPlots();
    showWaterfall();
    showSamples();
    showTexts();
  });
}

/* ---- Controls ---- */

function pressed(id, on) { $(id).setAttribute('aria-pressed', on); }
$('smooth').addEventListener('input', e => {
  state.smooth = e.target.value / 100;
  $('smooth-value').textContent = state.smooth.toFixed(2);
  showAll();
});
$('x-step').addEventListener('click', () => {
  state.x = 'step';
  pressed('x-step', true);
  pressed('x-time', false);
  showAll();
});
$('x-time').addEventListener('click', () => {
  state.x = 'time';
  pressed('x-step', false);
  pressed('x-time', true);
  showAll();
});
$('log-y').addEventListener('click', () => {
  state.logY = !state.logY;
  pressed('log-y', state.logY);
  showAll();
});
$('log-x').addEventListener('click', () => {
  state.logX = !state.logX;
  pressed('log-x', state.logX);
  showAll();
});
$('theme').addEventListener('click', () => {
  state.theme = { auto: 'dark', dark: 'light', light: 'auto' }[state.theme];
  try { localStorage.setItem('brim-theme', state.theme); } catch (e) { /* private windows keep nothing */ }
  applyTheme();
});
try { state.theme = localStorage.getItem('brim-theme') || 'auto'; } catch (e) { /* as above */ }
systemDark.addEventListener('change', applyTheme);
$('plotter').textContent = hasUplot
  ? 'Plots by uPlot (its licence: /uplot.license.txt).'
  : 'Plots by the page itself.';
applyTheme();
connect();
