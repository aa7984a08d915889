// The reference: Hugging Face's native tokenizer, from the npm package `tokenizers`. Its folder is in
// TOKENIZERS.
//   both TOKENIZER.json DOCS IDS TEXT  train TEXT OUT.json PATTERN.json  bench TOKENIZER.json TEXT
//   adversarial OUT BYTES              docs TEXT OUT BYTES               runs OUT CHARACTERS
//   llama PACKAGE.js OUT.json          plans TestPlans.txt NAME OUT.docs OUT.ids
// DOCS, IDS and OUT are lists: a 32-bit count, then so many bytes or 32-bit ids (tests/verify_tokenizer.c).
const fs = require('fs');
const path = require('path');
const lib = () => require(path.resolve(process.env.TOKENIZERS));

function readList(file, size) {
  const data = fs.readFileSync(file), items = [];
  for (let i = 0; i < data.length;) {
    const n = data.readUInt32LE(i) * size;
    items.push(data.subarray(i + 4, i + 4 + n));
    i += 4 + n;
  }
  return items;
}

function writeList(file, items, size) {
  const out = fs.openSync(file, 'w');
  for (const b of items) {
    const head = Buffer.alloc(4);
    head.writeUInt32LE(b.length / size);
    fs.writeSync(out, head);
    if (b.length) fs.writeSync(out, b);
  }
  fs.closeSync(out);
}

const idsToBytes = (ids) => Buffer.from(Int32Array.from(ids).buffer);

// Pieces of about `size` characters; never half a surrogate pair.
function cut(text, size) {
  const docs = [];
  for (let i = 0; i < text.length;) {
    let end = Math.min(i + size, text.length);
    if (end < text.length && text.charCodeAt(end - 1) >= 0xd800 && text.charCodeAt(end - 1) < 0xdc00) end++;
    docs.push(text.slice(i, end));
    i = end;
  }
  return docs;
}

let seed = 12345;
const dice = (n) => { seed = (Math.imul(seed, 1103515245) + 12345) >>> 0; return (seed >>> 8) % n; };

// Runs of one kind of character, mixed: every plane, marks, spaces, line ends, apostrophes, digits of many
// scripts.
function adversarial(bytes) {
  const kinds = [
    () => String.fromCodePoint(dice(0x80)), () => String.fromCodePoint(0x80 + dice(0x280)),
    () => String.fromCodePoint(0x300 + dice(0x70)),
    () => { const c = dice(0x10ffff); return String.fromCodePoint(c >= 0xd800 && c < 0xe000 ? 0x4e00 : c); },
    () => String.fromCodePoint(dice(0xd800)), () => String.fromCodePoint(0x10000 + dice(0x10000)),
    () => String.fromCodePoint(0x1f000 + dice(0xb00)),
    () => ' \t\n\r\u000b\u00a0\u2028\u3000\u180e\u0085\u200b'[dice(11)], () => '\n\r '[dice(3)], () => ' ',
    () => ["'s", "'T", "'re", "'VE", "'m", "'ll", "'d", "'\u017f", '\u2019s', "''"][dice(10)],
    () => String.fromCodePoint([0x30, 0x660, 0x966, 0xff10, 0x1d7ce, 0x2160, 0x10d40][dice(7)] + dice(10)),
    () => String.fromCodePoint(0xac00 + dice(11172)), () => String.fromCodePoint(0x1100 + dice(0x100)),
    () => 'e\u0301\u0323'.slice(0, 1 + dice(3)),
    () => String.fromCodePoint(0x7f0 + dice(0x120)), () => 'AbCdE'.slice(dice(5)),
    () => '\u2581'.repeat(1 + dice(3)),
    () => ['<|endoftext|>', '<s>', '</s>', '<bos>', '<|begin_of_text|>', '<|im_start|>', '<\uff5cUser\uff5c>',
      '[INST]', '<0x41>'][dice(9)],
  ];
  let text = '';
  for (let size = 0; size < bytes;) {
    const kind = kinds[dice(kinds.length)], n = 1 + dice(dice(8) ? 4 : 40);
    let run = '';
    for (let i = 0; i < n; i++) run += kind();
    text += run;
    size += Buffer.byteLength(run);
  }
  return text;
}

// Long runs, on which a pattern may go back again and again, and a word of which may have any length.
function runs(length) {
  const part = [' ', 'a', 'A', '\n', '7', '!', "'", '\t ', 'Aa', '\u4e2d', '\u2581', '\u02b0A',
    '<|endoftext|', 'e' + '\u0301'.repeat(50), ' '.repeat(1000) + 'x', '\n' + ' '.repeat(2000)];
  return part.map((s) => s.repeat(length / s.length));
}

// The ids of every document, and the text of every list of ids.
async function both(file, docs, outIds, outText) {
  const t = lib().Tokenizer.fromFile(file), ids = [], texts = [];
  for (const d of readList(docs, 1)) {
    const list = (await t.encode(d.toString('utf8'), null)).getIds();
    ids.push(idsToBytes(list));
    texts.push(Buffer.from(await t.decode(list, true)));
  }
  writeList(outIds, ids, 4);
  writeList(outText, texts, 1);
}

function empty(preTokenizer) {
  return { version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null,
    pre_tokenizer: preTokenizer,
    post_processor: null, decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true,
      use_regex: true },
    model: { type: 'BPE', vocab: {}, merges: [] } };
}

function train(text, out, pattern) {
  const pre = JSON.parse(fs.readFileSync(pattern)).pre_tokenizer;
  const t = lib().Tokenizer.fromString(JSON.stringify(empty(pre)));
  t.train([text]);
  t.save(out, false);
}

// MB/s by CPU time of the whole process: what others do on the machine does not count.
async function bench(file, text) {
  const t = lib().Tokenizer.fromFile(file);
  const docs = cut(fs.readFileSync(text, 'utf8').slice(0, 2000000), 10000);
  let best = 0;
  for (let k = 0; k < 3; k++) {
    const begin = process.cpuUsage();
    let bytes = 0;
    await t.encodeBatch(docs, { addSpecialTokens: false });
    const used = process.cpuUsage(begin);
    for (const d of docs) bytes += Buffer.byteLength(d);
    best = Math.max(best, bytes / (used.user + used.system));
  }
  console.log(best.toFixed(2));
}

// Llama's vocabulary and merges, out of the package's source, as tokenizer.json.
function llama(source, out) {
  const text = fs.readFileSync(source, 'utf8');
  const take = (name) => Buffer.from(new RegExp(`${name}\\w* = "([^"]*)"`).exec(text)[1], 'base64');
  const raw = take('\\w*vocab_base64').toString('utf8').split('\n');
  const vocab = raw.map((s, i) => i >= 3 && i < 259
    ? `<0x${(i - 3).toString(16).toUpperCase().padStart(2, '0')}>` : s);
  const m = take('\\w*merges_binary'), merges = [];
  for (let i = 0; i + 3 < m.length; i += 4) {
    merges.push([vocab[m.readUInt16LE(i)], vocab[m.readUInt16LE(i + 2)]]);
  }
  const special = (id, content) => ({ id, content, single_word: false, lstrip: false, rstrip: false,
    normalized: false, special: true });
  const j = empty(null);
  j.added_tokens = [special(0, '<unk>'), special(1, '<s>'), special(2, '</s>')];
  j.normalizer = { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '\u2581' },
    { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' }] };
  j.post_processor = { type: 'TemplateProcessing', single: [{ SpecialToken: { id: '<s>', type_id: 0 } },
    { Sequence: { id: 'A', type_id: 0 } }],
    pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
    special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] } } };
  j.decoder = { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '\u2581' }, content: ' ' },
    { type: 'ByteFallback' }, { type: 'Fuse' },
    { type: 'Strip', content: ' ', start: 1, stop: 0 }] };
  j.model = { type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: null,
    end_of_word_suffix: null, fuse_unk: true,
    byte_fallback: true, vocab: Object.fromEntries(vocab.map((s, i) => [s, i])), merges };
  fs.writeFileSync(out, JSON.stringify(j));
}

async function llamaEncode(source, docs, out) {
  const t = (await import(path.resolve(source))).default;
  writeList(out, readList(docs, 1).map((d) => idsToBytes(t.encode(d.toString('utf8')))), 4);
}

// gpt-tokenizer's own expectations for one encoding.
function plans(file, name, docs, ids) {
  const texts = [], lists = [];
  const plan = /EncodingName: (\w+)\r?\nSample: ([^]*?)\r?\nEncoded: (\[[^\]]*\])/g;
  for (const m of fs.readFileSync(file, 'utf8').matchAll(plan)) {
    if (m[1] !== name) continue;
    texts.push(Buffer.from(m[2]));
    lists.push(idsToBytes(JSON.parse(m[3])));
  }
  writeList(docs, texts, 1);
  writeList(ids, lists, 4);
}

const [verb, a, b, c, d] = process.argv.slice(2);
const verbs = {
  both: () => both(a, b, c, d), train: () => train(a, b, c),
  bench: () => bench(a, b), llama: () => llama(a, b),
  llamaEncode: () => llamaEncode(a, b, c), plans: () => plans(a, b, c, d),
  adversarial: () => writeList(a, cut(adversarial(Number(b)), 4000).map((s) => Buffer.from(s)), 1),
  runs: () => writeList(a, runs(Number(b)).map((s) => Buffer.from(s)), 1),
  docs: () => writeList(b, cut(fs.readFileSync(a, 'utf8').replaceAll('\ufffd', ''), Number(c))
    .map((s) => Buffer.from(s)), 1),
};
Promise.resolve(verbs[verb]()).catch((e) => { console.error(String(e)); process.exit(1); });
