// Writes variants.json: tokenizers made from the shared ones by edits, with what the reference
// library (npm package "tokenizers", 0.23.2) makes of them. Only needed to change variants.json:
//   npm install tokenizers && VFLOW_SHARED=... node make_variants.js > variants.json
const {Tokenizer} = require('tokenizers');
const fs = require('fs');

let state = 12345n;
function random(n) {  // xorshift64
  const mask = (1n << 64n) - 1n;
  state ^= (state << 13n) & mask;
  state ^= state >> 7n;
  state ^= (state << 17n) & mask;
  return Number((state >> 20n) % BigInt(n));
}

const parts = ['the', ' cat', 'Hello', ' ', '  ', '   ', '\n', '\r\n', '\t', "'s", "'LL", "'ſ", '123', '4567890',
  '3', '½', 'Ⅷ', '٣', 'é', 'e\u0301', 'a\u0316\u0301\u0316', '\u1100\u1161\u11a8', '각', 'ﬁ', '½', 'Å', '漢字', 'かな', '한국어',
  '😀', '👨‍👩‍👧', '\u200d', '\u00a0', '\u3000', '\u180e', '\u2028', '▁', '▁▁', '.', '!!', '"', '-', '_', 'x_y', '/', '[MASK]', '<a>', 'word',
  'wordy', '<s>', '</s>', '<|endoftext|>', 'Once upon a time', ' there was', 'ABC', 'aBc', 'ß', 'ж', 'İ', 'नमस्ते', '\u0000', '\u007f', '\ufeff', '\ue000', '\u{10ffff}', '--', 'éé', 'e\u0301e\u0301', ' \n \u2003x', 'K'];
function text() {
  let s = '';
  for (let n = random(14); n >= 0; n--) s += parts[random(parts.length)];
  return s;
}

const fixed = ['', ' ', 'a', ' a', 'a ', '  a  b', "I'm they'LL we'Ve", 'x123456y', 'one\n\n two\r\n\r\n  three ', 'word words sword word', '<a>x <a> x<a>', '  [MASK]  b [MASK]', 'e\u0301\u0327 \u0344 한 \u1112\u1161\u11ab', 'foo.bar(baz)[1] == "q"; // c'];

const gpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const llama3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const qwen2 = llama3.replace('{1,3}', '');
const o200k = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const deepseek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const byteLevel = {type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false};
const split = (pattern, behavior = 'Isolated', invert = false) => ({type: 'Split', pattern, behavior, invert});
const pre = (...list) => [['pre_tokenizer'], {type: 'Sequence', pretokenizers: list}];
const regex = r => ({Regex: r});
const added = (id, content, flags) => ({id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...flags});
const eot = added(0, '<|endoftext|>', {special: true});
const template = (single, ids) => ({type: 'TemplateProcessing',
  single: single.map(s => s === '$' ? {Sequence: {id: 'A', type_id: 0}} : {SpecialToken: {id: s, type_id: 0}}), pair: [],
  special_tokens: Object.fromEntries(Object.entries(ids).map(([k, v]) => [k, {id: k, ids: v, tokens: v.map(String)}]))});
const metaspace = (prepend_scheme, split) => ({type: 'Metaspace', replacement: '▁', prepend_scheme, split});
const flags = base => [added(base, '[MASK]', {lstrip: true, special: true}), added(base + 1, '<a>', {rstrip: true}),
  added(base + 2, 'word', {single_word: true}), added(base + 3, 'éé', {normalized: true, single_word: true}), added(base + 4, 'Once upon', {normalized: true}), added(base + 5, ' \n', {rstrip: true})];
const llamaSpecials = [added(0, '<unk>', {special: true}), added(1, '<s>', {special: true}), added(2, '</s>', {special: true})];

const variants = [
  ['llama3', 'tinystories2k', [pre(split(regex(llama3)), byteLevel), [['model', 'ignore_merges'], true], [['added_tokens'], [eot, added(2048, '<a>', {special: true})]],
    [['post_processor'], {type: 'Sequence', processors: [byteLevel, template(['<a>', '$'], {'<a>': [2048]})]}]]],
  ['qwen2', 'tinystories2k', [[['normalizer'], {type: 'NFC'}], pre(split(regex(qwen2)), byteLevel), [['post_processor'], byteLevel]]],
  ['o200k', 'gpt2', [pre(split(regex(o200k)), byteLevel)]],
  ['deepseek', 'gpt2', [pre(split(regex('\\p{N}{1,3}')), split(regex('[一-龥぀-ゟ゠-ヿ]+')), split(regex(deepseek)), byteLevel)]],
  ['digits', 'tinystories2k', [pre({type: 'Digits', individual_digits: true}, {type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true})]],
  ['digit runs', 'tinystories2k', [pre({type: 'Digits', individual_digits: false}, {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true})]],
  ['classes', 'tinystories2k', [pre(split(regex('\\w+|\\W')), split(regex('[\\w\\-]+|\\d|\\D')), split(regex('^[^\\S\\n]+|[a-z]+$|\\u00e9|\\x{4e00}|.')), byteLevel)]],
  ['empty matches', 'tinystories2k', [pre(split(regex('(?=[A-Z])|x*')), byteLevel)]],
  ['possessive', 'tinystories2k', [pre(split(regex('(?>\\p{L}++) ?+| *+\\p{N}|(?<=\\s)\\S|(?<!a)b|(?i:the)')), byteLevel)]],
  ...['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'].flatMap(b => [false, true].map(i =>
    [`split ${b} ${i}`, 'tinystories2k', [pre(split({String: ' '}, b, i), split(regex('\\p{P}'), b, !i), byteLevel)]])),
  ['flags', 'tinystories2k', [[['normalizer'], {type: 'NFKC'}], [['added_tokens'], [eot, ...flags(2048)]]]],
  ['flags prepend', 'stories260k', [[['added_tokens'], [...llamaSpecials, ...flags(512)]]]],
  ['normalized known', 'stories260k', [[['model', 'ignore_merges'], true], [['added_tokens'], [added(0, '<unk>', {special: true}), added(1, '<s>', {normalized: true}), added(2, '</s>', {special: true}), added(259, '▁t', {normalized: true})]]]],
  ['normalizers', 'tinystories2k', [[['normalizer'], {type: 'Sequence', normalizers: [{type: 'NFD'}, {type: 'Replace', pattern: regex('\\p{M}+'), content: ''},
    {type: 'Replace', pattern: {String: '--'}, content: '—'}, {type: 'Replace', pattern: regex(' {2,}'), content: ' '}, {type: 'Prepend', prepend: '>'}]}]]],
  ['nfkd', 'tinystories2k', [[['normalizer'], {type: 'NFKD'}]]],
  ...['first', 'always', 'never'].flatMap(p => [true, false].map(s =>
    [`metaspace ${p} ${s}`, 'stories260k', [[['normalizer'], null], [['pre_tokenizer'], metaspace(p, s)], [['decoder'], metaspace(p, s)]]])),
  ['metaspace old', 'stories260k', [[['normalizer'], null], [['pre_tokenizer'], {type: 'Metaspace', replacement: '▁', str_rep: '▁', add_prefix_space: true}],
    [['decoder'], {type: 'Metaspace', replacement: '▁', str_rep: '▁', add_prefix_space: true}]]],
  ['gemma', 'stories260k', [[['normalizer'], {type: 'Replace', pattern: {String: ' '}, content: '▁'}], [['pre_tokenizer'], split({String: ' '}, 'MergedWithPrevious')],
    [['decoder'], {type: 'Sequence', decoders: [{type: 'Replace', pattern: {String: '▁'}, content: ' '}, {type: 'ByteFallback'}, {type: 'Fuse'}]}]]],
  ['no fallback', 'stories260k', [[['model', 'byte_fallback'], false]]],
  ['no fuse', 'stories260k', [[['model', 'byte_fallback'], false], [['model', 'fuse_unk'], false]]],
  ['no unk', 'stories260k', [[['model', 'byte_fallback'], false], [['model', 'unk_token'], null]]],
  ['some bytes', 'stories260k', [[['model', 'vocab', '<0xE6>']], [['model', 'vocab', '<0x81>']]]],
  ['no decoder', 'tinystories2k', [[['decoder'], null]]],
  ['steps', 'stories260k', [[['decoder'], {type: 'Sequence', decoders: [{type: 'ByteFallback'}, {type: 'Strip', content: '▁', start: 2, stop: 0},
    {type: 'Replace', pattern: {String: 'th'}, content: 'TH'}, {type: 'Sequence', decoders: [{type: 'Fuse'}, {type: 'Strip', content: 'a', start: 3, stop: 0}]}, {type: 'Replace', pattern: {String: '�'}, content: '??'}]}]]],
  ['byte level and more', 'tinystories2k', [[['decoder'], {type: 'Sequence', decoders: [{type: 'Replace', pattern: {String: 'Ġ'}, content: 'Ġ!'}, byteLevel, {type: 'Strip', content: ' ', start: 1, stop: 0}]}]]],
  ['template', 'tinystories2k', [[['post_processor'], {type: 'Sequence', processors: [template(['x', '$', 'y', 'x'], {x: [5, 6], y: [7]}), byteLevel]}]]],
  ['pair merges', 'tinystories2k', [], 'pairs'],
];

function edit(json, edits, how) {
  for (const [path, ...value] of edits) {
    const at = path.slice(0, -1).reduce((o, k) => o[k], json), key = path[path.length - 1];
    if (value.length) at[key] = value[0]; else delete at[key];
  }
  if (how === 'pairs') json.model.merges = json.model.merges.map(m => m.split(' '));
  return json;
}

(async () => {
  const out = [];
  for (const [name, base, edits, how] of variants) {
    const json = edit(JSON.parse(fs.readFileSync(`${process.env.VFLOW_SHARED}/tokenizers/${base}/tokenizer.json`)), edits, how);
    const t = Tokenizer.fromString(JSON.stringify(json));
    const cases = [];
    for (let i = 0; i < fixed.length + 8; i++) {
      const s = i < fixed.length ? fixed[i] : text();
      const ids = (await t.encode(s, null, {addSpecialTokens: false})).getIds();
      const special = (await t.encode(s, null, {addSpecialTokens: true})).getIds();
      cases.push({text: s, ids, ids_with_special: special, decoded: await t.decode(ids, false), decoded_skip_special: await t.decode(special, true)});
    }
    const decodes = [], size = base === 'gpt2' ? 50257 : base === 'stories260k' ? 512 : 2048;
    for (let i = 0; i < 10; i++) {
      const near = random(2) ? size : Math.min(size, 260), ids = [];
      for (let n = random(20); n > 0; n--) ids.push(random(near));
      decodes.push({ids, decoded: await t.decode(ids, false)});
    }
    out.push({name, base, edits: edits, pairs: how === 'pairs', cases, decodes});
  }
  console.log('[');
  console.log(out.map(v => JSON.stringify(v)).join(',\n'));
  console.log(']');
})();
