#!/usr/bin/env bash
# tools/verdict.py: lines as the suites print them, from runs on an H200. A claim that is missed must be said.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"

mkdir out
cat >out/ppo.txt <<'EOF'
peer: 256 envs, 1 epoch 149,000 steps/s (31 s)
256 x 1024, transformer   13,300,000   721,000   449,000   149,000   3.01x   27.4 %
256 x 1024, transformer, context 128   13,300,000   426,000   304,000   -   -   20.0 %
4096 x 64, transformer   30,300,000   1,200,000   761,000   286,000   2.66x   45.0 %
4096 x 64, mlp, environments on the CPU   57,300,000   38,700,000   30,200,000   2,970,000   10.17x   -
4096 x 64, mlp, environments on the GPU   714,000,000   111,000,000   39,400,000   2,970,000   20.00x   -
1 observation answered in 4.8 us on the CPU (99 %: 5.2 us), in 36.0 us on the device: the CPU answers
seconds a step: simulating 0.05, transferring 0.001, updating 0.0155; 2.0 transfers a step
update of step 3: kernels at work 86 % of 0.0155 s
cartpole, one core: 15.20M steps/s with one thread
133 s
EOF
printf 'ok two ranks, %s\n' host device statistics >out/ppo-ranks.txt
cat >out/mujoco.txt <<'EOF'
humanoid, 16 threads, clock: bare loop of mj_step 57700 steps/s, vector layer 55800: 96.8 %
humanoid, 16 threads, processor time: bare loop of mj_step 57800 steps/s, vector layer 50000: 86.5 %
EOF
cat >out/humanoid.txt <<'EOF'
step 1: mean return 178.10 over 16 greedy episodes
step 1200: mean return 5131.00 over 16 greedy episodes
EOF
cat >out/precision-rates.txt <<'EOF'
qwen2.5-1.5b bf16: 63266 tokens/s, MFU 60.9 %
qwen2.5-1.5b fp8: 91364 tokens/s, MFU 88.0 %
llama-8b fp8: 19339 tokens/s, MFU 94.3 %
EOF
cat >out/precision-muon.txt <<'EOF'
adamw-1.2e-3: exit 0, 0 skips, step 950: validation loss 2.1250; step 1000: validation loss 2.1230;
muon: exit 0, 0 skips, step 400: validation loss 2.1240; step 450: validation loss 2.0420;
gpt2-124m adamw: 663000 tokens/s, MFU 53.4 %
gpt2-124m muon: 655800 tokens/s, MFU 52.8 %
EOF
cat >out/images.txt <<'EOF'
case                               samples/s   PyTorch  ratio      ms  MFU %  limit      W      %  loader
vit-l16                               1464.0    1254.0  1.167   349.7   55.0  0.930    682    100       -
EOF
cat >out/files.txt <<'EOF'
vit-l16, noise                        1464.0         -      -   349.7   55.0      -    682    100       -
vit-l16, JPEG files                   1478.0         -      -   346.0   55.0      -    682    100     5.7
vit-l16, JPEG files, loader           8200.0 alone, 16 threads; rate x headroom says 8424.6: 1.027 of it
EOF
cat >out/ladders.txt <<'EOF'
| rung                   | clips/s  |   ms/step |      factor |      so far | micro-batch |
| the recipe             |     44.6 |    717.00 |       1.00x |       1.00x |           8 |
| prefetch               |    581.0 |     55.00 |       1.10x |      13.03x |          32 |
| rung | samples/s | factor | so far | the guide |
| graphs, prefetch: the whole | 740.0 | 1.10x | 30.0x | 8 to 12x so far |
EOF
python3 "$here/tools/verdict.py" out >said 2>&1; rc=$?
row() { # part, claim, wanted, measured, verdict: each a pattern
    grep -qE "^$1 +$2 +$3 +$4 +$5\$" said
    verdict "$1: $2" $? "$(grep -F "$2" said || tail -n 3 said)"
}
[ $rc -eq 1 ]; verdict "a claim that is missed is an exit code" $? "exit code $rc"
row ppo '256 x 1,024, transformer, beside PyTorch' 'at least 3 x' '3.01 x' holds
row ppo '4096 x 64, mlp, environments on the GPU' 'at least 40 M steps/s' '39.4 M steps/s' 'FALLS SHORT'
row ppo 'an answer, 99 %' 'at most 50 us' '5.2 us' holds
row ppo 'hybrid, kernels at work' 'at least 70 %' '86 %' holds
row ppo 'the suite' 'at most 540 s' '133 s' holds
row ppo-ranks checks '3 ok' '3 ok, 0 not' holds
row mujoco '.*mj_step' 'at least 90 %' '96.8 %' holds
row humanoid '.*untrained' 'at least 3 x' '28.81 x' holds
row precision-rates 'qwen2.5-1.5b, fp8 beside bf16' 'at least 1.35 x' '1.444 x' holds
row precision-rates 'gpt2-124m, fp8 beside bf16' 'at least 1.1 x' '- x' 'not measured'
row precision-muon "steps of Muon to AdamW's 2.123 after 1,000" 'at most 750 ' '450 ' holds
row precision-muon "a step of Muon beside AdamW's" 'at most 1.03 x' '1.011 x' holds
row images 'vit-l16, power' 'at least 600 W' '682 W' holds
row files 'vit-l16, JPEG files, beside noise' 'at least 0.98 x' '1.01 x' holds
row files 'vit-l16, JPEG files, headroom is true' 'at most 0.2 off' '0.027 off' holds
row ladders '.*the guide.s start' 'at least 20 x' '13.03 x' 'FALLS SHORT'
! grep -q '^doctor' said; verdict "parts that did not run have no row" $?
exit $failed
