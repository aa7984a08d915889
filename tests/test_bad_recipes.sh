#!/usr/bin/env bash
# Wrong input ends within a second, with exit code 2 and exactly one line on stderr that names place and key.
# The same mistakes with their exact messages are in test_conf_bad.c; this file tests the whole program.
. "$(dirname "$0")/shell_lib.sh"

# name, pattern of the line, then the command's arguments
bad() {
    local name=$1 pattern=$2 start rc ms lines text
    shift 2
    start=${EPOCHREALTIME/./}
    timeout 10 "$brim" "$@" >out 2>err </dev/null; rc=$?
    ms=$(( (${EPOCHREALTIME/./} - start) / 1000 ))
    lines=$(wc -l <err); text=$(head -c 500 err)
    [ $rc -eq 2 ] && [ "$lines" -eq 1 ] && [ $ms -lt 1000 ] && grep -qE -- "$pattern" err
    verdict "$name" $? "exit code $rc, $lines lines, $ms ms: $text"
}

# name, pattern of what follows "r.yaml:", recipe text with printf escapes
bad_text() {
    printf "$3" >r.yaml
    bad "$1" "^r.yaml:$2" train r.yaml
}
noise='data: {kind: random}\n'

cat >good.yaml <<'END'
steps: 20
step_tokens: 1024
model: {layers: 1, width: 32, heads: 2, vocab: 256, context: 64}
data: {kind: random}
END

"$brim" plan good.yaml >out 2>err </dev/null; rc=$?
verdict "a good recipe is planned" $rc "exit code $rc: $(head -c 500 err)"

bad_text "unknown key"              '2: stepz: unknown key \(did you mean steps\?\)$' 'seed: 1\nstepz: 5\n'
bad_text "unknown key in a section" '2: model.widht: .*did you mean model.width' 'model:\n  widht: 5\n'
bad_text "unknown section"          '1: modle: .*did you mean model'       'modle:\n  width: 5\n'
bad_text "key of another program"   '1: learning_rate: .*did you mean optim.lr' 'learning_rate: 1e-3\n'
bad_text "key without its section"  '1: width: .*did you mean model.width' 'width: 5\n'
bad_text "duplicate key"            '2: steps: given twice'                'steps: 5\nsteps: 6\n'
bad_text "duplicate section"        '2: model: given twice' \
    'model: {width: 8}\nmodel: {heads: 2}\n'
bad_text "text for an integer"      '1: steps: expected an integer'        'steps: many\n'
bad_text "fraction for an integer"  '1: steps: expected an integer'        'steps: 1.5\n'
bad_text "quoted integer"           '1: steps: expected an integer'        'steps: "5"\n'
bad_text "list for an integer"      '1: steps: .*got a list'               'steps: [5]\n'
bad_text "mapping for an integer"   '1: steps: .*got a mapping'            'steps: {a: 5}\n'
bad_text "value for a section"      '1: model: is a section'               'model: 5\n'
bad_text "no value"                 '1: steps: has no value'               'steps:\nseed: 1\n'
bad_text "not a number"             '1: optim.lr: expected a number'       'optim: {lr: .nan}\n'
bad_text "infinite"                 '1: optim.lr: expected a number'       'optim: {lr: .inf}\n'
bad_text "not a switch"             '1: opt.flash: expected true or false' 'opt: {flash: maybe}\n'
bad_text "unknown choice"           '1: precision: .*did you mean bf16'    'precision: bf61\n'
bad_text "unknown device"           '1: device: '                          "device: tpu\n$noise"
bad_text "zero steps"               '1: steps: 0 is out of bounds'         'steps: 0\n'
bad_text "negative width"           '1: model.width: -8 is out of bounds'  'model: {width: -8}\n'
bad_text "huge integer"             '1: steps: .*out of bounds'            'steps: 999999999999999999999999\n'
bad_text "dropout of everything"    '1: model.dropout: 1 is out of bounds' 'model: {dropout: 1}\n'
bad_text "memory limit"             '1: memory_limit: '                    'memory_limit: 120%%\n'
bad_text "requirement"              '1: require: .*did you mean flash'     'require: [flahs]\n'
bad_text "requirement switched off" '2: require: .*opt.flash is false' \
    "${noise}require: [flash]\nopt: {flash: off}\n"
bad_text "heads and width"          '2: model.heads: .*must divide' \
    "${noise}model: {width: 768, heads: 7}\n"
bad_text "kv_heads and heads"       '2: model.kv_heads: .*must divide'     "${noise}model: {kv_heads: 5}\n"
bad_text "odd head with rope"       '2: model.head_dim: .*even' \
    "${noise}model: {pos: rope, head_dim: 33}\n"
bad_text "step and context"         '2: step_tokens: .*multiple'           "${noise}step_tokens: 1000\n"
bad_text "micro-batch and step"     '2: micro_batch: .*must divide'        "${noise}micro_batch: 3\n"
bad_text "warm-up and steps"        '3: optim.warmup: .*exceed' \
    "${noise}steps: 5\noptim: {warmup: 6}\n"
bad_text "learning rates"           '2: optim.min_lr: .*exceed' \
    "${noise}optim: {lr: 1e-4, min_lr: 1e-3}\n"
bad_text "no data"                  ' data.train: is missing'              'steps: 5\n'
bad_text "missing data"             '1: data.train: none.txt: no such file$' 'data: {train: none.txt}\n'
bad_text "folder as data"           '1: data.train: .*is a folder'         'data: {train: .}\n'
bad_text "vocabulary of text"       '2: model.vocab: ' \
    'data: {train: r.yaml}\nmodel: {vocab: 100}\n'
bad_text "run name"                 '1: run: '                             "run: ../elsewhere\n$noise"
bad_text "no run name"              '1: run: is empty'                     'run: ""\ndata: {kind: random}\n'
bad_text "tab"                      '2: yaml: tab'                         'model:\n\twidth: 8\n'
bad_text "syntax"                   '1: yaml: '                            'steps: }\n'
bad_text "unclosed list"            '2: yaml: the list of line 1 lacks a comma or its \]$' 'require: [flash\n'
bad_text "unclosed section"         '2: yaml: the section of line 1 lacks a comma or its \}$' \
    'data: {train: r.yaml\nsteps: 5\n'
bad_text "unclosed quote"           '2: yaml: the quotation mark .* is never closed$' \
    'steps: 5\nrun: "abc\nseed: 1\n'
bad_text "quote closed by the next" '1: yaml: the quotation mark .* is closed only on line 3$' \
    'run: "abc\nsteps: 5\ninit: "x"\n'
bad_text "indented too far"         '2: yaml: wrong indentation: the line above' 'run: abc\n  seed: 1\n'
bad_text "a number, then too far"   '3: yaml: wrong indentation: the line above' \
    'model:\n  layers: 2\n    width: 32\n'
bad_text "the same at the top"      '3: yaml: wrong indentation: the line above' 'steps: 5\n\n  seed:\n'
bad_text "a number without comma"   '2: yaml: the section of line 1 lacks a comma or its \}$' \
    'model: {layers: 2\n  width: 32}\n'
bad_text "a number of two lines"    '1: steps: expected an integer' 'steps: 5\n  6\n'
bad_text "indented too little"      '3: yaml: wrong indentation: no key above' \
    'model:\n  width: 8\n layers: 5\n'
bad_text "first key indented"       '2: yaml: wrong indentation: the keys above' '  steps: 5\nseed: 1\n'
bad_text "no colon"                 '2: yaml: this line has no ": "'       'steps: 5\nseed 1\n'
bad_text "two colons"               '1: yaml: a second ": " in this line'  'run: a: b\n'
bad_text "text behind a value"      '1: yaml: the value ends before this'  'run: "5" 6\n'
bad_text "alias"                    '2: seed: aliases'                     'steps: 5\nseed: *x\n'
bad_text "alias cycle"              '1: require: anchors'                  'require: &a [*a]\n'
bad_text "tag"                      '1: steps: tags'                       'steps: !!python/object 5\n'
bad_text "two documents"            '2: yaml: .*one document'              "${noise}---\nsteps: 5\n"
bad_text "list at the top"          '1: yaml: .*mapping of keys'           '[1, 2]\n'
bad_text "plain text"               '1: yaml: .*mapping of keys'           'hello world\n'
bad_text "empty file"               ' the recipe is empty$'                ''
bad_text "only a comment"           ' the recipe is empty$'                '# nothing\n'
bad_text "zero byte"                '2: yaml: not a text file'             'steps: 5\n\0\n'
bad_text "UTF-16"                   '1: yaml: not a text file'             '\xff\xfes\0t\0'

head -c 4096 "$brim" >junk.yaml
bad "binary junk" '^junk.yaml:1: yaml: not a text file' train junk.yaml
head -c 100000 /dev/zero | tr '\0' '[' >deep.yaml
bad "100,000 nested brackets" '^deep.yaml:1: ' train deep.yaml
{ printf 'model: '; head -c 100000 /dev/zero | tr '\0' '{'; } >deep.yaml
bad "100,000 nested braces" '^deep.yaml:1: ' train deep.yaml
{ printf 'steps: '; for _ in $(seq 20000); do printf -- '- '; done; } >deep.yaml
bad "20,000 nested dashes" '^deep.yaml:1: ' train deep.yaml
head -c 100000000 /dev/zero | tr '\0' '#' >large.yaml
bad "100 MB file" '^large.yaml: a recipe is at most 1 MiB$' train large.yaml
{ printf 'run: '; head -c 1000000 /dev/zero | tr '\0' 'a'; } >long.yaml
bad "value of a megabyte" '^long.yaml:1: run: is longer' train long.yaml
mkdir folder
bad "directory" '^folder: is a directory' train folder
mkfifo pipe
bad "pipe that nobody writes" '^pipe: ' train pipe
bad "device" '^/dev/zero: ' train /dev/zero
bad "missing file" '^none.yaml: no such recipe$' train none.yaml
# a shipped one: whether there are others depends on the build folder
mkdir recipes && cp good.yaml recipes/quickstart.yaml
bad "misspelt recipe" '^quickstrat: no such recipe \(did you mean quickstart\?\)$' plan quickstrat
bad "file name with a line break" '^a\?b.yaml: no such recipe' train $'a\nb.yaml'

bad "override: unknown key" '^command line: model.widht: unknown key \(did you mean model.width\?\)$' train \
    good.yaml model.widht=5
bad "override: wrong type" '^command line: steps: expected an integer' train good.yaml steps=five
bad "override: empty value" '^command line: steps: expected an integer' train good.yaml steps=
bad "override: out of bounds" '^command line: optim.beta1: 1 is out of bounds' train good.yaml optim.beta1=1
bad "override: no value" '^command line: steps: expected key=value' train good.yaml steps
bad "override: section" '^command line: model: is a section' train good.yaml model=5
bad "override: relation" '^command line: model.heads: .*must divide' train good.yaml model.heads=7
bad "override: unknown choice" '^command line: precision: ' train good.yaml precision=fp4
bad "override: not text" '^command line: run: ' train good.yaml run=$'\xff\n'
bad "override: no run name" '^command line: run: is empty' train good.yaml run=
bad "override: very long" '^command line: ' train good.yaml "$(head -c 100000 /dev/zero | tr '\0' 'k')=1"

printf 'stepz: 5\n' >r.yaml
bad "plan: bad recipe" '^r.yaml:1: stepz: unknown key' plan r.yaml
bad "plan: bad override" '^command line: stepz: unknown key' plan good.yaml stepz=5
bad "plan: missing file" '^none.yaml: no such recipe$' plan none.yaml
bad "plan: mask without data for it" '^command line: model.mask: mask prefix needs data.prefix_token' plan \
    good.yaml device=cpu model.mask=prefix
bad "plan: concession nobody makes" "^command line: give_way: 'gradients' is none of" plan good.yaml \
    device=cpu give_way=gradients
bad "optim: a loss scale that is no power of two" \
    '^command line: optim.loss_scale: 1000 is no power of two from 1 on: 1024' \
    plan good.yaml device=cpu optim.loss_scale=1000
brim plan good.yaml device=cpu optim.muon_lr=1e-3 fp8.head=true
[ $rc -eq 0 ] && says "optim.muon_lr has no effect: optim.kind is not muon" && says "fp8.head has no effect"
verdict "keys without effect are named" $? "$(seen)"
for card in "t4 7.5" "v100 7.0"; do
    brim plan good.yaml --gpu "${card% *}" device=auto
    [ $rc -eq 0 ] && says "fp16: compute capability ${card#* } has fp16 matrix units"
    verdict "${card% *}: auto takes fp16" $? "$(seen)"
done
bad "plan: precision required in vain" '^command line: require: bf16 is off: the precision is fp32' plan \
    good.yaml device=cpu require=bf16
bad "plan: optimisation required in vain" '^command line: require: graphs is refused' plan good.yaml \
    device=cpu require=graphs
bad "plan: optimisation required of a model without use for it" \
    '^command line: require: linear_glu_fwd is not used: this model has no glu_fwd$' plan good.yaml \
    device=cpu model.act=gelu require=linear_glu_fwd
bad "train: likewise" '^command line: require: chunk_head is not used: one chunk ' train good.yaml \
    device=cpu require=chunk_head
bad "plan: precision that the CPU has not" '^command line: precision: fp16 needs a GPU' plan \
    good.yaml device=cpu precision=fp16
bad "plan: precision of another device" '^command line: precision: bf16 needs a GPU' plan good.yaml \
    device=cpu precision=bf16
sed 's/^data:.*/data: {train: r.yaml, val: good.yaml}/' good.yaml >val.yaml
bad "train: no note about a recipe that is refused" '^command line: model.heads: .*must divide' train \
    val.yaml data.train=r.yaml model.heads=7 optim.muon_lr=1e-3
asks() { # name, pattern, line of the recipe: what is found after parsing has its place too
    { cat good.yaml; printf 'device: cpu\n%s\n' "$3"; } >asks.yaml
    bad "$1" "$2" train asks.yaml
}
asks "file: precision" '^asks.yaml:6: precision: fp16 needs a GPU' 'precision: fp16'
asks "file: precision of another device" '^asks.yaml:6: precision: bf16 needs a GPU' 'precision: bf16'
asks "file: concession" "^asks.yaml:6: give_way: 'gradients' is none of" 'give_way: [gradients]'
asks "file: requirement" '^asks.yaml:6: require: graphs is refused' 'require: [graphs]'
asks "file: precision required" '^asks.yaml:6: require: bf16 is off' 'require: [bf16]'
"$brim" plan good.yaml device=cpu require=fp32,flash >out 2>err
verdict "plan: what is required is on" $? "$(cat err)"

[ -z "$(ls -A runs 2>/dev/null)" ]; verdict "no run directory was made" $? "$(ls -A runs)"
exit $failed
