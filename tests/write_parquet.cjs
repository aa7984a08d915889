// Writes the same documents with other programs' writers of Parquet, in every encoding and codec they have:
//   node write_parquet.cjs PACKAGES OUT        OUT/WRITER-some-FORM.parquet, with nulls, or WRITER-all-FORM, without;
//                                              OUT/some.docs and all.docs are what they hold (length in 4 bytes,
//                                              text), some.count and all.count how much
//   node write_parquet.cjs PACKAGES OUT TEXT   TEXT, cut at blank lines, or JSON lines: OUT/speed-CODEC.parquet,
//                                              speed.jsonl, speed.txt
const fs = require('fs'), path = require('path'), zlib = require('zlib')
const { createRequire } = require('module')
const [packages, out, text] = process.argv.slice(2)
const from = createRequire(path.resolve(packages, 'x.js'))
const arrow = from('apache-arrow'), wasm = from('parquet-wasm')

let state = 1
function roll(n) { state = (state * 48271) % 2147483647; return state % n }

function makeDocuments(nulls) {
  const piece = ['', 'a', 'Grüße, 世界 🌍', 'the quick brown fox ', '\n\n', '\u0000', 'x'.repeat(500), '"\\']
  const docs = []
  for (let i = 0; i < 3000; i++) {
    if (nulls && roll(4) === 0) { docs.push(null); continue }
    let s = i > 0 && docs[i - 1] && roll(2) ? docs[i - 1].slice(0, 40) : ''
    for (let k = roll(6); k > 0; k--) s += piece[roll(piece.length)]
    if (i === 1000) s = 'large ' + 'abcdefg\n'.repeat(400000)
    docs.push(Buffer.from(s).toString()) // no half of a surrogate pair
  }
  return docs
}

function expected(docs) {
  const parts = []
  for (const d of docs) {
    if (!d) continue
    const b = Buffer.from(d), n = Buffer.alloc(4)
    n.writeUInt32LE(b.length)
    parts.push(n, b)
  }
  return Buffer.concat(parts)
}

function writeRust(name, docs, codec, set) {
  const column = { id: arrow.vectorFromArray(docs.map((_, i) => i), new arrow.Int32()),
    text: arrow.vectorFromArray(docs, new arrow.Utf8()) }
  const table = wasm.Table.fromIPCStream(arrow.tableToIPC(new arrow.Table(column), 'stream'))
  const b = new wasm.WriterPropertiesBuilder().setCompression(wasm.Compression[codec])
  fs.writeFileSync(path.join(out, name + '.parquet'), wasm.writeParquet(table, set(b).build()))
}

function rustForms(docs, kind) {
  for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'ZSTD']) {
    for (const v of ['V1', 'V2']) {
      for (const e of ['PLAIN', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY', 'DICTIONARY']) {
        writeRust(`rust-${kind}-${v}-${e}-${codec}`, docs, codec, b => {
          b = b.setWriterVersion(wasm.WriterVersion[v]).setDictionaryEnabled(e === 'DICTIONARY')
          if (e !== 'DICTIONARY') b = b.setColumnEncoding('text', wasm.Encoding[e])
          return b.setMaxRowGroupSize(700).setDataPageSizeLimit(20000).setWriteBatchSize(64)
        })
      }
    }
  }
}

async function hyparquetForms(docs, kind) {
  const { parquetWriteBuffer } = await import(path.resolve(packages, 'node_modules/hyparquet-writer/src/index.js'))
  const compressors = { GZIP: b => zlib.gzipSync(b), ZSTD: zlib.zstdCompressSync }
  const codecs = ['UNCOMPRESSED', 'SNAPPY', 'GZIP'].concat(zlib.zstdCompressSync ? ['ZSTD'] : [])
  for (const codec of codecs) {
    for (const encoding of [undefined, 'PLAIN', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY']) {
      const b = parquetWriteBuffer({ codec, compressors, rowGroupSize: [100, 1000], pageSize: 30000,
        columnData: [{ name: 'n', data: docs.map((_, i) => i), type: 'INT32' },
          { name: 'text', data: docs, type: 'STRING', nullable: kind === 'some', encoding }] })
      fs.writeFileSync(path.join(out, `hyparquet-${kind}-${encoding || 'AUTO'}-${codec}.parquet`), Buffer.from(b))
    }
  }
}

async function duckForms(docs, kind) {
  let duck
  try { duck = from('@duckdb/node-api') } catch { return }
  const db = await (await duck.DuckDBInstance.create(':memory:')).connect()
  const rows = path.join(out, 'rows.json')
  fs.writeFileSync(rows, docs.map((text, i) => JSON.stringify({ i, text })).join('\n'))
  await db.run(`create table t as select text from read_json('${rows}', columns={i: 'INT', text: 'VARCHAR'},
    format='newline_delimited', maximum_object_size=100000000) order by i`)
  for (const codec of ['uncompressed', 'snappy', 'gzip', 'zstd']) {
    for (const v of ['V1', 'V2']) {
      for (const words of [1, 100000]) {
        await db.run(`copy t to '${path.join(out, `duckdb-${kind}-${v}-${words}-${codec}.parquet`)}'
          (format parquet, codec '${codec}', parquet_version ${v}, dictionary_size_limit ${words},
          row_group_size 2048)`)
      }
    }
  }
  await db.run('drop table t')
  fs.unlinkSync(rows)
}

function speedFiles() {
  const all = fs.readFileSync(text, 'utf8')
  const docs = text.endsWith('.jsonl') ? all.split('\n').filter(d => d).map(d => JSON.parse(d).text)
    : all.split('\n\n').filter(d => d)
  const props = b => b.setMaxRowGroupSize(1000).setWriterVersion(wasm.WriterVersion.V1)
  for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'ZSTD'])
    writeRust('speed-' + codec.toLowerCase(), docs, codec, props)
  fs.writeFileSync(path.join(out, 'speed.jsonl'), docs.map(text => JSON.stringify({ text }) + '\n').join(''))
  fs.writeFileSync(path.join(out, 'speed.txt'), docs.join('\n\n'))
}

async function main() {
  if (text) return speedFiles()
  for (const kind of ['some', 'all']) {
    const docs = makeDocuments(kind === 'some')
    fs.writeFileSync(path.join(out, kind + '.docs'), expected(docs))
    const count = x => docs.filter(x).length
    fs.writeFileSync(path.join(out, kind + '.count'), `${count(d => d)} documents, ${count(d => d === null)} nulls\n`)
    rustForms(docs, kind)
    await hyparquetForms(docs, kind)
    await duckForms(docs, kind)
  }
  writeRust('brotli', ['one'], 'BROTLI', b => b)
  writeRust('lz4', ['one'], 'LZ4_RAW', b => b)
}
main().catch(e => { console.error(e); process.exit(1) })
