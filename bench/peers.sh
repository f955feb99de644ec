#!/bin/sh
# sluice beside llama.cpp on this machine: fetches and builds llama.cpp's llama-bench, makes a file of
# random weights, runs both in turn on it, and prints medians, spread and ratio.
#
#   bench/peers.sh [STEP...]      steps: fetch build model run table; all of them when none is given
#
# `run` begins anew and makes ROUNDS rounds. The step `round` adds one to those that are there, for
# machines that are quiet for short times only.
#
# Variables (defaults): DIR (build/peers), SHAPE (0.8b), TYPE (q8_0), THREADS (processors),
# ROUNDS (5), PP (128,512; 0 = none), TG (128; 0 = none), DEPTH (0), BATCH (none: so many sequences
# decoded together as well), SLUICE (build/sluice), LLAMA_CPP_PYTHON (0.3.36: the release whose source
# holds llama.cpp), JOBS (processors), PEER_FLAGS (none: more flags for the compilers of llama.cpp),
# PEER_ARGS (none: more options for llama-bench).
#
# On processors with AMX, GCC 12 leaves out most of llama.cpp's tile configuration (its intrinsic
# names only the first bytes as read), and llama-bench dies of an illegal instruction: build with
# another compiler (CC, CXX), or with PEER_FLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16".
#
# Needs cmake, a C++ compiler, python3 with pip, the network for `fetch`, and an otherwise idle
# machine for `run`. Who begins alternates from round to round.
set -eu

DIR=${DIR:-build/peers}
SHAPE=${SHAPE:-0.8b}
TYPE=${TYPE:-q8_0}
THREADS=${THREADS:-$(nproc)}
ROUNDS=${ROUNDS:-5}
PP=${PP:-128,512}
TG=${TG:-128}
DEPTH=${DEPTH:-0}
SLUICE=${SLUICE:-build/sluice}
VERSION=${LLAMA_CPP_PYTHON:-0.3.36}
JOBS=${JOBS:-$(nproc)}
PEER_FLAGS=${PEER_FLAGS:-}
PEER_ARGS=${PEER_ARGS:-}
BATCH=${BATCH:-}

HERE=$(dirname "$0")
TREE=$DIR/llama_cpp_python-$VERSION/vendor/llama.cpp
PEER=$DIR/llama-build/bin/llama-bench
PEER_BATCH=$DIR/llama-build/bin/llama-batched-bench
MODEL=$DIR/$SHAPE-$TYPE.gguf
RUNS=$DIR/runs-$SHAPE-$TYPE-t$THREADS

fetch() {
    mkdir -p "$DIR/download"
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python \
        --dest "$DIR/download" "llama-cpp-python==$VERSION"
    tar -xzf "$DIR/download/llama_cpp_python-$VERSION.tar.gz" -C "$DIR"
}

build() {
    cmake -S "$TREE" -B "$DIR/llama-build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DCMAKE_C_FLAGS="$PEER_FLAGS" -DCMAKE_CXX_FLAGS="$PEER_FLAGS" \
        -DGGML_CCACHE=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_BUILD_TOOLS=ON >"$DIR/cmake.log"
    cmake --build "$DIR/llama-build" --target llama-bench llama-batched-bench -j "$JOBS" \
        >"$DIR/build.log"
}

model() {
    mkdir -p "$DIR"
    "$SLUICE" bench --shape "$SHAPE" --type "$TYPE" --save "$MODEL"
}

none() {
    [ "$1" = 0 ] && echo none || echo "$1"
}

run_sluice() {
    "$SLUICE" bench "$MODEL" --threads "$THREADS" --pp "$(none "$PP")" --tg "$(none "$TG")" \
        --depth "$DEPTH" --batch "${BATCH:-none}" -r 1 --first 0 --json >"$RUNS/sluice-$1.json"
}

peer_failed() {
    tail -5 "$1" >&2
    echo "bench/peers.sh: llama.cpp failed, see $1" >&2
    exit 1
}

run_peer() {
    # shellcheck disable=SC2086 # words of PEER_ARGS are options of their own
    "$PEER" -m "$MODEL" -t "$THREADS" -p "$PP" -n "$TG" -d "$DEPTH" -r 1 -o json \
        $PEER_ARGS >"$RUNS/llama-$1.json" 2>"$RUNS/llama-$1.log" ||
        peer_failed "$RUNS/llama-$1.log"
    [ -z "$BATCH" ] || "$PEER_BATCH" -m "$MODEL" -t "$THREADS" -c $((BATCH * (TG + 1))) -npp 1 \
        -ntg "$TG" -npl "$BATCH" --output-format jsonl >"$RUNS/llama-batch-$1.json" \
        2>"$RUNS/llama-batch-$1.log" || peer_failed "$RUNS/llama-batch-$1.log"
}

round() {
    mkdir -p "$RUNS"
    number=1
    while [ -e "$RUNS/sluice-$number.json" ] && [ -e "$RUNS/llama-$number.json" ]; do
        number=$((number + 1))
    done
    echo "round $number" >&2
    if [ $((number % 2)) -eq 1 ]; then
        run_sluice "$number"
        run_peer "$number"
    else
        run_peer "$number"
        run_sluice "$number"
    fi
}

run() {
    rm -rf "$RUNS"
    left=$ROUNDS
    while [ "$left" -gt 0 ]; do
        round
        left=$((left - 1))
    done
}

table() {
    python3 "$HERE/peers_table.py" "$RUNS"
}

[ $# -gt 0 ] || set -- fetch build model run table
for step in "$@"; do
    case $step in
    fetch | build | model | run | round | table) "$step" ;;
    *)
        echo "bench/peers.sh: there is no step '$step': fetch, build, model, run, round, table" >&2
        exit 2
        ;;
    esac
done
