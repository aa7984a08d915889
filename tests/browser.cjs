/* Drives a real Chromium: node browser.cjs PLAYWRIGHT CHROMIUM URL FOLDER. Prints "ok NAME" or "not ok NAME: why"; pictures go into
 * FOLDER. The runs "live" (training), "one" and "two" must be there. */
'use strict';
const [playwright, chromium, url, folder] = process.argv.slice(2);
const { chromium: browserType } = require(playwright);

let failed = 0;
function verdict(name, ok, seen) {
  console.log(ok ? `ok ${name}` : `not ok ${name}: ${seen}`);
  if (!ok) failed = 1;
}

/* Pixels of a plot that are not background: how much ink there is, and where on average. */
const ink = title => {
  const canvas = document.querySelector(`[data-title="${title}"] canvas`);
  if (!canvas || !canvas.width) return { n: 0, sum: 0 };
  const px = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let n = 0, sum = 0;
  for (let i = 0; i < px.length; i += 4) if (px[i + 3] > 40) { n++; sum = (sum * 31 + i + px[i]) % 1000000007; }
  return { n, sum };
};

async function until(page, fn, arg, ms = 15000) {
  try { await page.waitForFunction(fn, arg, { timeout: ms }); return true; } catch (e) { return false; }
}

async function desktop(context, plain) {
  const page = await context.newPage(), tag = plain ? ' (own plotter)' : '', errors = [];
  page.on('pageerror', e => errors.push(e.message));
  page.on('console', m => { if (m.type() === 'error') errors.push(m.text()); });
  await page.goto(url + (plain ? '?plot=plain' : '') + '#live');
  verdict('the page says it is live' + tag, await until(page, () => document.getElementById('link').textContent === 'live'), 'no events');
  verdict('the loss is drawn' + tag, await until(page, t => { const c = document.querySelector(`[data-title="${t}"] canvas`); return c && c.width > 100; }, 'Loss'), 'no canvas');
  await page.waitForTimeout(400);
  const before = await page.evaluate(ink, 'Loss'), step = await page.textContent('.run[data-name="live"] .sub');
  await until(page, s => document.querySelector('.run[data-name="live"] .sub').textContent !== s, step);
  let after = before;
  for (let i = 0; i < 50 && after.sum === before.sum; i++) {
    await page.waitForTimeout(200);
    after = await page.evaluate(ink, 'Loss');
  }
  verdict('the loss moves' + tag, before.n > 200 && after.n > 200 && before.sum !== after.sum, JSON.stringify([before, after]));

  const logOf = () => page.evaluate(() => (document.querySelector('[data-file="log.txt"] pre') || {}).textContent || '');
  await page.evaluate(() => { const d = document.querySelector('[data-file="log.txt"]'); if (d) d.open = true; });
  const early = (await logOf()).split('\n').length;
  const grew = await until(page, n => document.querySelector('[data-file="log.txt"] pre').textContent.split('\n').length > n, early);
  verdict('the log grows, open as it is' + tag, grew && await page.evaluate(() => document.querySelector('[data-file="log.txt"]').open), String(early));

  const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.click('#theme');
  const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.waitForTimeout(300);
  await page.screenshot({ path: `${folder}/dark${plain ? '-plain' : ''}.png` });
  verdict('dark' + tag, light !== dark && (await page.textContent('#theme')) === 'theme: dark', `${light} ${dark}`);
  await page.click('#theme');

  await page.click('.run[data-name="live"]');
  await page.click('.run[data-name="one"]');
  await page.click('.run[data-name="two"]');
  const both = await until(page, () => { const t = document.querySelector('[data-title="Loss"] .legend').textContent; return t.includes('one') && t.includes('two') && !t.includes('live'); });
  verdict('two runs side by side' + tag, both, await page.textContent('[data-title="Loss"] .legend'));
  verdict('and as a table' + tag, (await page.textContent('.compare')).includes('two'), await page.textContent('#tiles'));
  const rough = await page.evaluate(ink, 'Loss');
  await page.click('#log-y');
  await page.waitForTimeout(300);
  const logged = await page.evaluate(ink, 'Loss');
  verdict('a logarithmic axis draws anew' + tag, logged.n > 200 && logged.sum !== rough.sum, JSON.stringify([rough, logged]));
  await page.click('#log-y');
  await page.fill('#smooth', '95');
  await page.waitForTimeout(300);
  const smooth = await page.evaluate(ink, 'Loss');
  verdict('smoothing draws anew' + tag, smooth.n > 200 && smooth.sum !== rough.sum && (await page.textContent('#smooth-value')) === '0.95', JSON.stringify(smooth));
  await page.fill('#smooth', '60');
  await page.click('#x-time');
  await page.waitForTimeout(300);
  verdict('time on the other axis' + tag, (await page.evaluate(ink, 'Loss')).sum !== rough.sum, 'the same picture');
  await page.click('#x-step');
  verdict('samples are shown as text' + tag, (await page.textContent('#samples')).includes('<b>once</b> upon') && !(await page.$('#samples .body b b')), await page.textContent('#samples'));
  verdict('the waterfall has its parts' + tag, (await page.$$('#waterfall .bar')).length === 2, await page.textContent('#waterfall'));
  await page.screenshot({ path: `${folder}/desktop${plain ? '-plain' : ''}.png` });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth);
  verdict('nothing sticks out' + tag, wide, 'a horizontal scroll bar');
  verdict('no error on the console' + tag, errors.length === 0, errors.join(' | '));
  await page.close();
}

/* A task with other units, measures, losses and pictures. */
async function otherTask(context) {
  const page = await context.newPage(), errors = [];
  page.on('pageerror', e => errors.push(e.message));
  await page.goto(url + '#seen');
  const drawn = await until(page, () => document.querySelector('[data-title="Validation accuracy"] canvas'));
  verdict('a measure of the task has its plot', drawn, await page.textContent('#plots'));
  verdict('and each of its losses', (await page.$('[data-title="distance"] canvas')) && (await page.$('[data-title="repel"] canvas')),
    await page.textContent('#plots'));
  const heads = await page.$$eval('#plots h3', all => all.map(h => h.textContent));
  verdict('the measure that counts stands behind the loss', heads[0] === 'Loss' && heads[1] === 'Validation accuracy, larger is better' &&
    heads[2] === 'Validation top5, larger is better' && heads.indexOf('distance') > heads.indexOf('Rate, images/s'), heads.join('; '));
  const tiles = await page.textContent('#tiles');
  verdict('the best value has its tile', /0\.8best accuracy, step 200/.test(tiles), tiles);
  verdict('its units and measures are in the tiles', /images\/s/.test(tiles) && /validation accuracy/.test(tiles), tiles);
  const wide = await until(page, () => { const i = document.querySelector('#samples img'); return i && i.naturalWidth === 1; });
  verdict('a picture is shown', wide, await page.textContent('#samples'));
  verdict('no error on the console (other task)', errors.length === 0, errors.join(' | '));
  await page.close();
}

/* Names in the address: one with a comma, and one that is no encoding. */
async function addresses(context) {
  const page = await context.newPage(), errors = [];
  page.on('pageerror', e => errors.push(e.message));
  await page.goto(url + '#a%2Cb,50%');
  const picked = await until(page, () => document.querySelector('.run[data-name="a,b"][aria-pressed="true"]'));
  verdict('a name with a comma is found in the address', picked, await page.textContent('#runs'));
  verdict('no error by an address that is no encoding', errors.length === 0, errors.join(' | '));
  await page.close();
}

/* Labels of an axis are exact and differ, however close the values are. */
async function axes(context) {
  const page = await context.newPage();
  await page.goto(url + '#one');
  const seen = await page.evaluate(() => [labels([216100, 216200, 216300], count), labels([695, 697.5, 700], watts),
    labels([61, 61.5, 62], timeText), labels([100, 100.5, 101], stepText), labels([1e5, 2e5], count), labels([5, 10], timeText),
    labels([2.2e7, 2.25e7], plain), labels([1e8, 1e9], bytes), labels([0.1 + 0.2, 0.4], plain), labels([null, 0, 0.52], percent),
    ticks(0.757, 5.2, 5, true), ticks(2.1, 3.4, 5, true).map(v => plain(v)), ticks(37.2 * 2 ** 20, 39 * 2 ** 20, 4, false, true).map(v => bytes(v))].map(t => t.join(' ')).join('; '));
  verdict('labels of an axis are exact', seen === '216.1k 216.2k 216.3k; 695 W 697.5 W 700 W; 1:01 1:01.5 1:02; 100  101; 100k 200k; ' +
    '0:05 0:10; 2.2e+7 2.25e+7; 95.37 MiB 953.7 MiB; 0.3 0.4;  0 % 52 %; 1 2 5; 2.5 3; 37.5 MiB 38 MiB 38.5 MiB 39 MiB', seen);
  await page.close();
}

/* The first page of a new user. */
async function noRuns(context) {
  const page = await context.newPage(), list = { host: { name: 'box', cpu_name: 'CPU', cpus: 2, no_gpu: 'none' }, gpus: [], runs: [] };
  await page.route('**/events', r => r.fulfill({ contentType: 'text/event-stream', body: `event: runs\ndata: ${JSON.stringify(list)}\n\n` }));
  await page.goto(url);
  verdict('a page without runs says how to start one', await until(page, () => document.getElementById('empty').offsetHeight > 0), 'nothing');
  await page.close();
}

/* The server refuses once, as when too many pages wait for events. */
async function refusedOnce(context) {
  const page = await context.newPage();
  let asked = 0;
  await page.route('**/events', r => asked++ ? r.continue() : r.fulfill({ status: 503, body: 'busy' }));
  await page.goto(url + '#one');
  verdict('a page that was refused asks again', await until(page, () => document.getElementById('link').textContent === 'live'),
    `${asked} times: ${await page.textContent('#link')}`);
  await page.close();
}

/* One run is drawn while another is still on its way. */
async function slowRun(context) {
  const page = await context.newPage();
  await page.route('**/api/runs/two?*', async r => { await new Promise(done => setTimeout(done, 1500)); await r.continue(); });
  await page.goto(url + '#one,two');
  const both = await until(page, () => { const e = document.querySelector('[data-title="Loss"] .legend'); return e && e.textContent.includes('two'); });
  const titles = await page.$$eval('#plots [data-title]', all => all.map(e => e.dataset.title));
  verdict('a run that comes late adds no plot of its steps', both && !titles.includes('step'), titles.join('; '));
  await page.close();
}

/* What a live run writes while it trains. */
async function liveSamples(context) {
  const page = await context.newPage();
  await page.goto(url + '#live');
  const shown = await until(page, () => /step \d+/.test(document.querySelector('#samples').textContent), undefined, 30000);
  verdict('samples of a live run appear', shown, await page.textContent('#samples'));
  const parts = await until(page, () => /useful work/.test(document.querySelector('#waterfall').textContent), undefined, 30000);
  verdict('its traced waterfall has useful work', parts, await page.textContent('#waterfall'));
  await page.screenshot({ path: `${folder}/live.png`, fullPage: true });
  await page.close();
}

/* The trace as a browser reads it: Trace Event Format, every event complete. */
async function trace(context, file) {
  const page = await context.newPage();
  const text = require('fs').readFileSync(file, 'utf8');
  const seen = await page.evaluate(t => {
    const d = JSON.parse(t), bad = d.traceEvents.filter(e => !['ph', 'ts', 'dur', 'pid', 'tid', 'name'].every(k => k in e));
    return { n: d.traceEvents.length, bad: bad.length };
  }, text);
  verdict('a browser reads the trace', seen.n > 50 && seen.bad === 0, JSON.stringify(seen));
  await page.close();
}

/* The same in a trace viewer that others wrote: it complains about events that overlap. */
async function viewer(context, dir, file) {
  const fs = require('fs'), path = require('path'), said = [];
  const kinds = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css' };
  const server = require('http').createServer((q, r) => {
    const name = path.join(dir, q.url === '/' ? 'index.html' : path.basename(q.url.split('?')[0]));
    r.setHeader('content-type', kinds[path.extname(name)] || 'application/octet-stream');
    r.end(fs.existsSync(name) ? fs.readFileSync(name) : '');
  });
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  const page = await context.newPage();
  page.on('console', m => said.push(m.text()));
  page.on('pageerror', e => said.push('Frame: ' + e.message));
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.setInputFiles('input[type=file]', file);
  const shown = await until(page, () => /brim \(pid 1\)/.test(document.body.innerText));
  const bad = said.filter(s => /Tried to end|still open|^Frame/.test(s));
  verdict('a trace viewer reads the trace', shown && said.some(s => /Trace Event Format/.test(s)) && bad.length === 0,
    `${bad.length} complaints: ${said.slice(0, 3).join(' | ').slice(0, 300)}`);
  await page.screenshot({ path: `${folder}/viewer.png` });
  await page.close();
  server.close();
}

async function phone(context) {
  const page = await context.newPage();
  await page.goto(url + '#one,two');
  await until(page, () => { const c = document.querySelector('[data-title="Loss"] canvas'); return c && c.width > 100; });
  await page.waitForTimeout(500);
  await page.screenshot({ path: `${folder}/phone.png`, fullPage: false });
  const fits = await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth);
  verdict('phone: nothing sticks out', fits, await page.evaluate(() => document.documentElement.scrollWidth));
  const small = await page.evaluate(() => [...document.querySelectorAll('button')].filter(b => b.offsetHeight > 0 && b.offsetHeight < 36).length);
  verdict('phone: buttons are large enough for a thumb', small === 0, `${small} are not`);
  await page.tap('#theme');
  verdict('phone: dark', (await page.textContent('#theme')) === 'theme: dark', await page.textContent('#theme'));
  verdict('phone: plots fill the width', (await page.evaluate(() => document.querySelector('[data-title="Loss"]').offsetWidth)) > 340, 'narrow');
  await page.close();
}

(async () => {
  const browser = await browserType.launch({ executablePath: chromium, args: ['--no-sandbox', '--disable-dev-shm-usage', '--enable-unsafe-swiftshader'] });
  const asked = new Set();
  const wide = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
  const small = await browser.newContext({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, colorScheme: 'light' });
  const other = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
  for (const c of [wide, small, other]) c.on('request', r => asked.add(new URL(r.url()).host));
  await desktop(wide, false);
  if (process.env.BRIM_BROWSER_ALL) await desktop(other, true);
  await otherTask(wide);
  await addresses(wide);
  await axes(wide);
  await slowRun(wide);
  await noRuns(wide);
  await refusedOnce(wide);
  await liveSamples(wide);
  if (process.argv[6]) await trace(wide, process.argv[6]);
  await phone(small);
  if (process.argv[7]) await viewer(await browser.newContext(), process.argv[7], process.argv[6]);
  verdict('no request leaves the machine', [...asked].every(h => h === new URL(url).host), [...asked].join(', '));
  await browser.close();
  process.exit(failed);
})().catch(e => { console.log(`not ok the browser: ${e.message.split('\n')[0]}`); process.exit(1); });
