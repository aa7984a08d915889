# For shell tests with two processes of one run: sourced where two_ranks() is wanted.

# Runs a command or function as ranks 0 and 1, which it knows by $RANK. rc0 and rc1 are the exit codes, the
# logs NAME.0.log and NAME.1.log. A port that somebody has is exchanged for another.
two_ranks() { # NAME, command ...
    local name=$1 r port tries pids
    shift
    for ((tries = 0; tries < 5; tries++)); do
        port=$((20000 + RANDOM % 12000)) pids=()
        for r in 0 1; do
            RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$port BRIM_COMM_TIMEOUT=20 \
                "$@" >"$name.$r.log" 2>&1 </dev/null &
            pids+=($!)
        done
        wait "${pids[0]}"; rc0=$?
        wait "${pids[1]}"; rc1=$?
        grep -q 'port .* in use' "$name.0.log" || break
    done
}
