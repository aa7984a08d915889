#!/usr/bin/env bash
# Environments of others: a template, hosted headers, faults in this process and in others, Python, MuJoCo.
. "$(dirname "$0")/shell_lib.sh"
fail() { echo "exit code $rc: $(cat out err)"; }
run() { timeout 60 "$brim" env "$@" >out 2>err; rc=$?; }
# The leak sanitizer dies of thread-local data that a shared object brings, unless it is among the program's
# own.
case "$build" in *asan*) tls=-ftls-model=initial-exec ;; *) tls= ;; esac
so() { # object, source, flags
    ${CC:-gcc} -O1 -w $tls -shared -fPIC -I"$here/src/env" -I"$here/src" "${@:3}" -o "$1.so" \
        "$here/tests/env/$2.c" -lm
}

run list; [ $rc -eq 0 ] && [ "$(grep -c 'at most' out)" -eq 8 ] && grep -q '; 4 agents; at most 100 steps' out
verdict "env list" $? "$(fail)"
for e in CartPole-v1 meteor crossing; do
    run check $e --seconds 0.2; [ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q '^ok deterministic' out
    verdict "env check $e" $? "$(fail)"
done
for _ in 1 2 3; do # the best of three: the machine may be busy
    run check cartpole --seconds 0.5
    rate=$(sed -n 's/^ok speed: \([0-9.]*\)M steps.*/\1/p' out)
    [ -n "$rate" ] && { case "$build" in *asan*) true ;; *) [ "${rate%%.*}" -ge 2 ] ;; esac; } && break
done
verdict "cartpole: millions of steps a second, even on a busy machine" $? "$(grep speed out)"
run list extra; [ $rc -eq 2 ] && grep -q 'env list takes no name' err
verdict "env list takes no name" $? "$(fail)"
run chekc cartpole; [ $rc -eq 2 ] && grep -q 'did you mean check' err
verdict "a slip in the verb" $? "$(fail)"
run check tmaze lenght=40; [ $rc -eq 2 ] && grep -q 'tmaze: lenght: no such option (did you mean length?)' err
verdict "a slip in an option" $? "$(fail)"
run check cartpole lenght=40; [ $rc -eq 2 ] && grep -q 'cartpole: lenght: no such option (it has none)' err
verdict "an option of an environment without options" $? "$(fail)"
run check cartpol; [ $rc -eq 2 ] && grep -q 'did you mean cartpole' err
verdict "a slip in the name" $? "$(fail)"

# The template compiles with warnings as errors, passes, and has a picture.
run new mine && grep -q '^    brim train cartpole run=mine-env env=./mine.so ' out
verdict "env new names a run that no other task has by chance" $? "$(fail)"
[ $rc -eq 0 ] &&
    ${CC:-gcc} -Wall -Wextra -Wno-unused-parameter -Werror -O2 -shared -fPIC -o mine.so mine.c 2>err &&
    run check ./mine.so --seconds 0.1
[ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q '^ok save and load' out && grep -q '^ok picture' out
verdict "env new compiles and passes" $? "$(fail)"
run new mine; [ $rc -eq 2 ] && grep -q 'mine.c: the file exists already' err
verdict "env new does not overwrite" $? "$(fail)"
run new second; [ $rc -eq 0 ] && cmp -s env.h "$here/src/env/env.h"
verdict "env new twice in a folder" $? "$(fail)"
mkdir own && (cd own && echo mine >env.h && "$brim" env new third >../out 2>../err; echo $? >../rc)
rc=$(cat rc); [ "$rc" -eq 2 ] && grep -q 'env.h: the file exists already' err && [ "$(cat own/env.h)" = mine ]
verdict "env new does not overwrite a header" $? "$(fail)"
run show ./mine.so --episodes 2 --out mine.gif
[ $rc -eq 0 ] && [ "$(head -c 6 mine.gif)" = GIF89a ] && grep -q '^mean return' out
verdict "env show writes a GIF" $? "$(fail)"

so bouncer bouncer_env && run check ./bouncer.so --seconds 0.1
[ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q '^ok deterministic' out
verdict "a header somebody else wrote" $? "$(fail)"
so pairs pairs && run check ./pairs.so --seconds 0.1
[ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q '2 agents' out
verdict "two agents" $? "$(fail)"
run check ./pairs.so --isolate process --seconds 0.1; [ $rc -eq 0 ] && ! grep -q '^not ok' out
verdict "two agents in processes" $? "$(fail)"
so beside pairs -DBATCH && run check ./beside.so --seconds 0.1
[ $rc -eq 1 ] && grep -q '^not ok writes: it writes beside its row of reward' out
verdict "check finds what step_batch writes beside its rows" $? "$(fail)"
for what in ALIVE LAST; do
    so chance pairs -DRANDOM_$what && run check ./chance.so --seconds 0.1
    [ $rc -eq 1 ] && grep -q '^not ok deterministic' out
    verdict "check finds chance without a seed, $what" $? "$(fail)"
done

so faulty faulty || { echo "not ok faulty.c compiles"; exit 1; }
for f in crash:'crashed: a memory error' recurse:'crashed: a memory error' abort:'crashed: abort' \
    nan:'element 1 of observation block x is' inf:'the reward is inf' \
    fail:'step 5: step failed: it said so itself'
do
    case "$build-${f%%:*}" in *asan*-crash | *asan*-recurse) continue ;; esac
    run show ./faulty.so fault="${f%%:*}"
    [ $rc -eq 1 ] && grep -q "environment ./faulty.so number 0.*${f#*:}" err
    verdict "${f%%:*} is named and ends the run" $? "$(fail)"
done
run show ./faulty.so fault=hang --timeout 0.5
[ $rc -eq 1 ] && grep -q 'number 0 hangs: a call took longer than 0.5 s;' err
verdict "a hang is named and ends the run" $? "$(fail)"
# The time limit is that of one call: four environments take longer. The first one is made twice.
run check ./faulty.so fault=create at=4 --timeout 0.5 --seconds 0
[ $rc -eq 1 ] && grep -q 'faulty.so number 3 crashed: abort()' err
verdict "a crash as an environment is made is named" $? "$(fail)"
for how in none process; do
    run show ./faulty.so fault=shape at=2 --episodes 3 --isolate $how
    [ $rc -eq 1 ] && grep -q 'faulty.so number 0.*observation block x was f32\[2\] and now is f32\[3\]' err
    verdict "another shape is named and ends the run, isolate $how" $? "$(fail)"
    run show ./faulty.so fault=bits --isolate $how
    [ $rc -eq 1 ] && grep -q 'faulty.so number 0, episode 0, step 5: step gives something else than ENV' err
    verdict "an end that is none is named and ends the run, isolate $how" $? "$(fail)"
done
for f in crash hang fail; do
    rm -f once; run show ./faulty.so fault=$f marker=once --isolate process --timeout 0.5 --episodes 3
    [ $rc -eq 0 ] && grep -q '^episode 1: return 4, 5 steps, truncated' out &&
        grep -q '^episode 3: return 20, 20 steps' out && grep -q '^1 restart$' out &&
        grep -q 'restarting its worker' err
    verdict "isolated: a $f is restarted and counted" $? "$(fail)"
done
run show ./faulty.so fault=crash --isolate process --episodes 5
[ $rc -eq 1 ] && grep -q 'lost 3 times in a row' err
verdict "isolated: one that always crashes ends the run" $? "$(fail)"
for f in random:deterministic outside:bounds last:bounds overrun:writes reward:writes nan:runs nan:bounds; do
    run check ./faulty.so fault="${f%%:*}" at=7 --seconds 0.1; [ $rc -eq 1 ] && grep -q "^not ok ${f#*:}" out
    verdict "check finds ${f%%:*} in ${f#*:}" $? "$(fail)"
done
printf 'int x;\n' | ${CC:-gcc} -shared -fPIC -x c -o empty.so - && run check ./empty.so
[ $rc -eq 2 ] && grep -q 'exports no brim_env' err
verdict "an object without the symbol" $? "$(fail)"

if command -v python3 >/dev/null; then
    py=gym:$here/tests/env/line.py
    run check $py:Line --seconds 0.1
    [ $rc -eq 0 ] && ! grep -q '^not ok' out &&
        grep -q 'place f32\[2\], time f32\[1\], kind f32\[3\]; choices 2' out
    verdict "python: a Dict and a Discrete" $? "$(fail)"
    run show $py:Knobs --episodes 3; [ $rc -eq 0 ] && grep -q '^episode 3: return 10, 10 steps, truncated' out
    verdict "python: several heads and a mask" $? "$(fail)"
    run show $py:Square --episodes 3 --out s.gif; [ $rc -eq 0 ] && grep -q '^s.gif: 18 frames' out
    verdict "python: continuous actions and pictures" $? "$(fail)"
    rows() { # of which python
        for act in heads bits; do
            run check $py:Rows act=$act --seconds 0.1
            [ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q 'heads i32\[2,2\], bits i32\[2,2\]' out
            verdict "python $1: $act in rows" $? "$(fail)"
        done
    }
    rows "as it is"
    # Debian's numpy belongs to Debian's Python, which need not be the first in PATH.
    if ! python3 -c 'import numpy' 2>/dev/null; then PATH=/usr/bin:$PATH; fi
    if python3 -c 'import numpy' 2>/dev/null; then
        run check "gym:$here/tests/env/arrays.py:Arrays" size=6 --seconds 0.1
        [ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q 'image u8\[6,6,3\], speed f32\[1\]; 4 cont' out &&
            grep -q '^ok picture: 6 x 6' out
        verdict "python: numpy's arrays" $? "$(fail)"
        rows "with numpy"
        arrays=gym:$here/tests/env/arrays.py
        run check $arrays:Counts --seconds 0.1; [ $rc -eq 0 ] && ! grep -q '^not ok' out
        verdict "python: whole numbers of 64 bits" $? "$(fail)"
        run show $arrays:Counts most=5000000000 --episodes 3
        [ $rc -eq 1 ] && grep -q 'observation obs has a value that does not fit into i32' err
        verdict "python: numbers that do not fit" $? "$(fail)"
    else
        echo "skip: numpy is not installed"
    fi
    for f in raise:'broken on purpose' die:'exit code 7' hang:'worker hangs'; do
        rm -f once; run show $py:Line fault="${f%%:*}" marker=once --episodes 3 --timeout 1
        [ $rc -eq 0 ] && grep -q '^1 restart$' out && grep -q "${f#*:}" err
        verdict "python: ${f%%:*} is restarted and counted" $? "$(fail)"
    done
    run show $py:Line fault=raise again=1 --episodes 5
    [ $rc -eq 1 ] && grep -q 'Traceback' err && grep -q 'line.py.*line [0-9]*, in step' err
    verdict "python: a traceback is shown" $? "$(fail)"
    [ "$(grep -c Traceback err)" -eq 1 ] && ! grep -q gym_worker err &&
        grep -qE 'lost 3 times in a row; the last time: RuntimeError: .* \(line.py:[0-9]+\)$' err
    verdict "python: once, without Brim's own frames, and the place stands in the last line" $? "$(fail)"
    run check $py:Lien
    [ $rc -eq 2 ] && grep -q 'line.py: there is no Lien in it (did you mean Line?)$' err &&
        [ "$(wc -l <err)" -eq 1 ]
    verdict "python: a slip in the name of a class" $? "$(fail)"
    run check $py; [ $rc -eq 2 ] && grep -q 'which class of the file? gym:.*line.py:CLASS names one$' err
    verdict "python: a file without a class" $? "$(fail)"
    printf 'class A:\n  def __init__(self:\n' >slip.py; run check gym:slip.py:A
    [ $rc -eq 2 ] && tail -n 1 err | grep -q '^environment gym:slip.py:A: SyntaxError: .* (slip.py:2)$'
    verdict "python: a slip in the syntax" $? "$(fail)"
    sed 's/, self.t >= 20, {}$/, {}/; s/^class Line/class Four/' "$here/tests/env/line.py" >four.py
    run show gym:four.py:Four
    [ $rc -eq 1 ] && grep -q 'step() returned 4 values instead of 5: observation, reward, term' err &&
        [ "$(wc -l <err)" -eq 1 ]
    verdict "python: a step() of the old Gym" $? "$(fail)"
    run check $py:Line fault=raise at=1 again=1 --seconds 0.1
    [ $rc -eq 1 ] && grep -q '^not ok workers: [1-9]' out && ! grep -q '^ok speed' out
    verdict "python: check counts restarts" $? "$(fail)"
    run check $py:Nested --seconds 0.1
    [ $rc -eq 0 ] && grep -q 'obs.a f32\[2\], a f32\[1\]' out
    verdict "python: a key named obs" $? "$(fail)"
    run check $py:HighAction --seconds 0.1; [ $rc -eq 0 ] && ! grep -q '^not ok' out
    verdict "python: actions with one bound" $? "$(fail)"
    rm -f closed; run show $py:Closes marker=closed; [ $rc -eq 0 ] && [ -e closed ]
    verdict "python: environments are closed" $? "$(fail)"
    run show $py:SeedError; [ $rc -ne 0 ] && grep -q 'unsupported operand' err
    verdict "python: an error inside reset(seed=) is shown" $? "$(fail)"
    run show $py:NoSeed; [ $rc -eq 0 ]
    verdict "python: a reset without a seed" $? "$(fail)"
    run show $py:Line fault=nan; [ $rc -eq 1 ] && grep -q 'element 0 of observation block place is' err
    verdict "python: nan is named" $? "$(fail)"
    run show $py:Line fault=shape again=1
    [ $rc -eq 1 ] && grep -q 'observation place has shape \[3\], but its space has \[2\]' err
    verdict "python: another shape is named" $? "$(fail)"
    run show gym:none.py:Line
    [ $rc -eq 2 ] && grep -q 'none.py: no such file' err && [ "$(wc -l <err)" -eq 1 ]
    verdict "python: a missing file" $? "$(fail)"
else
    echo "skip: python3 is not installed"
fi

run check mujoco:humanoid.xml --seconds 0.3
if grep -qE 'not installed|no such file|without MuJoCo' err; then
    echo "skip: $(cat err)"
else
    [ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q '^ok save and load' out
    verdict "mujoco humanoid" $? "$(fail)"
    run show mujoco:humanoid.xml obs=qpos+qvel+cinert+cvel+qfrc_actuator+cfrc_ext
    [ $rc -eq 0 ] && grep -q '^mean return' out
    verdict "mujoco: all of Gymnasium's blocks" $? "$(fail)"
    so again humanoid_again && run show mujoco:humanoid.xml --episodes 5 && cp out first &&
        run show mujoco:humanoid.xml task=./again.so --episodes 5
    [ $rc -eq 0 ] && grep -q '^episode 5' out && cmp -s out first
    verdict "mujoco: the humanoid's reward, computed another way" $? "$(fail)"
    so again2 humanoid_again -DSKIP=2 && run show mujoco:humanoid.xml frame_skip=2 --episodes 5 &&
        cp out first && run show mujoco:humanoid.xml task=./again2.so --episodes 5
    [ $rc -eq 0 ] && grep -q '^episode 5' out && cmp -s out first
    verdict "mujoco: the humanoid's speed, with another frame_skip" $? "$(fail)"
    so stand stand && run show mujoco:humanoid.xml task=./stand.so
    [ $rc -eq 0 ] && grep -q 'return [1-9]' out
    verdict "mujoco: a task of the user's" $? "$(fail)"
    run check mujoco:arm26.xml task=reach --seconds 0.1
    [ $rc -eq 0 ] && ! grep -q '^not ok' out && grep -q 'target f32\[3\]' out && grep -q '^ok save and' out
    verdict "mujoco: a target drawn per episode" $? "$(fail)"
    so reach reach_again && run show mujoco:arm26.xml task=reach --episodes 5 && cp out first &&
        run show mujoco:arm26.xml task=./reach.so --episodes 5
    [ $rc -eq 0 ] && grep -q '^episode 5' out && cmp -s out first
    verdict "mujoco: a target in a task of the user's" $? "$(fail)"
    run check mujoco:humanoid.xml task=reach
    [ $rc -eq 2 ] && grep -q 'joints must be hinges or slides: joint 0 is not' err
    verdict "mujoco: no target for a free body" $? "$(fail)"
    run check mujoco:arm26.xml obs=qpos+target
    [ $rc -eq 2 ] && grep -q 'obs: the task has no target (task=reach has one)' err
    verdict "mujoco: a task without a target does not show one" $? "$(fail)"
    run check mujoco:there-is-none.xml
    [ $rc -eq 2 ] && grep -q 'there-is-none.xml: no such file' err
    verdict "mujoco: a missing model" $? "$(fail)"
    for o in frame_skip=0:'expected a whole number' speed=1:'no such option'; do
        run check mujoco:humanoid.xml "${o%%:*}"; [ $rc -eq 2 ] && grep -q "${o%%:*}: ${o#*:}" err
        verdict "mujoco: option ${o%%:*}" $? "$(fail)"
    done
    printf '<mujoco><worldbody><geom size="1"/></worldbody></mujoco>' >still.xml; run check mujoco:still.xml
    [ $rc -eq 2 ] && grep -q 'has no actuators' err
    verdict "mujoco: a model without actuators" $? "$(fail)"
    printf '<mujoco><nonsense/>' >bad.xml; run check mujoco:bad.xml; [ $rc -eq 2 ] && grep -q 'bad.xml' err
    verdict "mujoco: a broken model" $? "$(fail)"
fi
exit $failed
