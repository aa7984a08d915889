/* One kind of plot. uPlot draws it where the build could fetch uPlot, else the small plotter below does
 * (?plot=plain asks for the small plotter).
 *
 * makePlot(area, onCursor) gives { draw(lines, view), destroy() }. A line is
 * { x, y, color, width, alpha, dash, points }; x is ascending. view is { logX, logY, format, formatX,
 * binary }; binary: y counts bytes, and is divided by powers of two.
 * onCursor(i, x) tells where the pointer is: x, or null. */
'use strict';

const hasUplot = typeof window.uPlot === 'function' &&
  new URLSearchParams(location.search).get('plot') !== 'plain';

function cssColor(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function withAlpha(color, alpha) {
  if (alpha === undefined || alpha >= 1) return color;
  const n = parseInt(color.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
}

/* Lines with positive values only, where an axis is logarithmic. */
function visible(line, view) {
  const x = [], y = [];
  for (let i = 0; i < line.x.length; i++) {
    if ((view.logY && !(line.y[i] > 0)) || (view.logX && !(line.x[i] > 0))) continue;
    x.push(line.x[i]);
    y.push(line.y[i]);
  }
  return { ...line, x, y };
}

/* Labels of an axis, with as many digits as tell what stands there: 697.5 W is not called 698 W. A place that
 * takes more than eight digits is no round one; then it is enough that the labels differ. */
function labels(values, format) {
  const text = digits => values.map(v => v === null ? '' : format(v, digits)), exact = text(9);
  let usable = null;
  for (const digits of [undefined, 5, 6, 7, 8]) {
    const out = text(digits), shown = out.filter(Boolean);
    if (out.every((t, i) => t === exact[i])) return out;
    if (!usable && new Set(shown).size === shown.length) usable = out;
  }
  return usable || exact;
}

/* Ticks at 1, 2, 5 times powers of ten; on a logarithmic axis over more than two decades at powers alone. */
function ticks(lo, hi, n, log, binary) {
  const out = [];
  if (!(hi > lo)) return [lo];
  if (log) {
    const steps = Math.log10(hi / lo) > 2 ? [1] : [1, 2, 5];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++)
      for (const m of steps) if (m * 10 ** e >= lo && m * 10 ** e <= hi) out.push(m * 10 ** e);
    if (out.length >= 2) return out;
    out.length = 0;
  }
  const raw = (hi - lo) / n, base = 10 ** Math.floor(Math.log10(raw)), m = raw / base;
  const step = binary ? 2 ** Math.ceil(Math.log2(raw)) : base * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) {
    out.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  }
  return out;
}

function extent(lines, key) {
  let lo = Infinity, hi = -Infinity;
  for (const l of lines) for (const v of l[key]) if (Number.isFinite(v)) {
    if (v < lo) lo = v;
    if (v > hi) hi = v;
  }
  return [lo, hi];
}

function padded([lo, hi], log) {
  if (!(hi >= lo)) return [0, 1];
  /* Smoothing a constant leaves its last digits: such a range would have no end of ticks. */
  const wide = hi - lo > 1e-9 * Math.abs(hi);
  if (log) return wide ? [lo * (lo / hi) ** 0.04, hi * (hi / lo) ** 0.04] : [lo / 2, hi * 2];
  const pad = wide ? (hi - lo) * 0.06 : Math.abs(hi) * 0.1 || 1;
  return [lo >= 0 ? Math.max(0, lo - pad) : lo - pad, hi + pad];
}

/* ---- The small plotter ---- */

function plainPlot(area, onCursor) {
  const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
  let lines = [], view = {}, zoom = null, drag = null, map = null;
  area.append(canvas);

  function paint() {
    const w = area.clientWidth, h = area.clientHeight, k = window.devicePixelRatio || 1;
    const left = 66, right = 16, top = 8, bottom = 24;
    canvas.width = w * k; canvas.height = h * k;
    canvas.style.width = w + 'px'; canvas.style.height = h + 'px';
    pen.setTransform(k, 0, 0, k, 0, 0);
    pen.clearRect(0, 0, w, h);
    const inside = zoom ? lines.map(l => {
      const keep = l.x.map((v, i) => i).filter(i => l.x[i] >= zoom[0] && l.x[i] <= zoom[1]);
      return { ...l, x: keep.map(i => l.x[i]), y: keep.map(i => l.y[i]) };
    }) : lines;
    const [x0, x1] = zoom || (([a, b]) => b > a ? [a, b] : [a - 1, b + 1])(extent(inside, 'x'));
    const [y0, y1] = padded(extent(inside, 'y'), view.logY);
    const f = (v, log) => log ? Math.log(v) : v;
    const px = v => left +
      (f(v, view.logX) - f(x0, view.logX)) / (f(x1, view.logX) - f(x0, view.logX)) * (w - left - right);
    const py = v => top +
      (f(y1, view.logY) - f(v, view.logY)) / (f(y1, view.logY) - f(y0, view.logY)) * (h - top - bottom);
    map = { left, right: w - right, at: p => {
      const t = (p - left) / (w - left - right);
      return view.logX ? Math.exp(Math.log(x0) + t * (Math.log(x1) - Math.log(x0))) : x0 + t * (x1 - x0);
    } };
    pen.font = '11px system-ui, sans-serif';
    pen.fillStyle = cssColor('--soft');
    pen.strokeStyle = cssColor('--grid');
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    const atY = ticks(y0, y1, 5, view.logY, view.binary), textY = labels(atY, view.format);
    atY.forEach((v, i) => {
      pen.beginPath(); pen.moveTo(left, py(v)); pen.lineTo(w - right, py(v)); pen.stroke();
      pen.fillText(textY[i], left - 6, py(v) + 4);
    });
    pen.textAlign = 'center';
    const atX = ticks(x0, x1, Math.max(2, Math.floor(w / 70)), view.logX), textX = labels(atX, view.formatX);
    atX.forEach((v, i) => pen.fillText(textX[i], px(v), h - 8));
    pen.lineJoin = 'round';
    for (const l of inside) {
      pen.strokeStyle = withAlpha(l.color, l.alpha);
      pen.fillStyle = pen.strokeStyle;
      pen.lineWidth = l.width || 1.6;
      pen.setLineDash(l.dash || []);
      pen.beginPath();
      l.x.forEach((v, i) => i ? pen.lineTo(px(v), py(l.y[i])) : pen.moveTo(px(v), py(l.y[i])));
      pen.stroke();
      pen.setLineDash([]);
      if (l.points) l.x.forEach((v, i) => {
        pen.beginPath();
        pen.arc(px(v), py(l.y[i]), 3, 0, 7);
        pen.fill();
      });
    }
    if (drag) {
      pen.fillStyle = withAlpha('#0b7285', 0.18);
      pen.fillRect(Math.min(drag[0], drag[1]), top, Math.abs(drag[1] - drag[0]), h - top - bottom);
    }
  }

  const here = e => Math.min(map.right, Math.max(map.left, e.clientX - canvas.getBoundingClientRect().left));
  canvas.addEventListener('pointerdown', e => { if (map) drag = [here(e), here(e)]; });
  canvas.addEventListener('pointermove', e => {
    if (!map) return;
    if (drag) { drag[1] = here(e); paint(); }
    onCursor(map.at(here(e)));
  });
  canvas.addEventListener('pointerup', () => {
    if (drag && Math.abs(drag[1] - drag[0]) > 8) zoom = [map.at(Math.min(...drag)),
      map.at(Math.max(...drag))];
    drag = null;
    paint();
  });
  canvas.addEventListener('pointerleave', () => { drag = null; onCursor(null); paint(); });
  canvas.addEventListener('dblclick', () => { zoom = null; paint(); });
  const observer = new ResizeObserver(paint);
  observer.observe(area);
  return {
    draw(newLines, newView) {
      if (view.logX !== newView.logX || view.formatX !== newView.formatX) zoom = null;
      view = newView;
      lines = newLines.map(l => visible(l, view)).filter(l => l.x.length > 0);
      paint();
    },
    destroy() { observer.disconnect(); canvas.remove(); },
  };
}

/* ---- uPlot ---- */

/* uPlot's own places on a logarithmic axis begin at its lower end, which is no round one. */
function logAxis(binary) {
  return { splits: (u, i, lo, hi) => ticks(lo, hi, 5, true, binary), filter: (u, places) => places };
}
const powersOfTwo = Array.from({ length: 51 }, (_, i) => 2 ** i);

function fullPlot(area, onCursor) {
  let plot = null, shape = '', view = {}, zoomed = false;
  const size = () => ({ width: Math.max(120, area.clientWidth), height: area.clientHeight });

  function build(lines, data) {
    if (plot) plot.destroy();
    zoomed = false;
    const axis = { stroke: () => cssColor('--soft'), font: '11px system-ui, sans-serif',
      ticks: { show: false } };
    const grid = { stroke: () => cssColor('--grid'), width: 1 };
    plot = new window.uPlot({
      ...size(),
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      scales: {
        x: { time: false, distr: view.logX ? 3 : 1 },
        y: { distr: view.logY ? 3 : 1, range: (u, lo, hi) => padded([lo, hi], view.logY) },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: 70, values: (u, v) => labels(v, view.formatX),
          ...(view.logX ? logAxis(false) : {}) },
        { ...axis, grid, size: 66, space: 34, values: (u, v) => labels(v, view.format),
          ...(view.logY ? logAxis(view.binary) : view.binary ? { incrs: powersOfTwo } : {}) },
      ],
      series: [{}, ...lines.map(l => ({
        stroke: withAlpha(l.color, l.alpha), width: l.width || 1.6, dash: l.dash, spanGaps: true,
        points: l.points ? { show: true, size: 6, fill: l.color } : { show: false },
      }))],
      hooks: {
        setCursor: [u => onCursor(u.cursor.idx === null || u.cursor.left < 0 ? null
          : u.data[0][u.cursor.idx])],
        setSelect: [() => { zoomed = true; }],
      },
    }, data, area);
    plot.over.addEventListener('dblclick', () => { zoomed = false; });
  }

  const observer = new ResizeObserver(() => { if (plot) plot.setSize(size()); });
  observer.observe(area);
  return {
    draw(newLines, newView) {
      view = newView;
      const lines = newLines.map(l => visible(l, view)).filter(l => l.x.length > 0);
      const data = lines.length ? window.uPlot.join(lines.map(l => [l.x, l.y])) : [[]];
      const now = JSON.stringify([view.logX, view.logY, view.formatX.name,
        lines.map(l => [l.color, l.alpha, l.dash, l.width])]);
      if (now !== shape) { shape = now; build(lines, data); }
      else plot.setData(data, !zoomed);
      if (!zoomed) return;
      plot.redraw();
    },
    destroy() { observer.disconnect(); if (plot) plot.destroy(); },
  };
}

function makePlot(area, onCursor) { return hasUplot ? fullPlot(area, onCursor) : plainPlot(area, onCursor); }
