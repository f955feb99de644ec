#!/bin/sh
# The demonstration model answers a few questions.
# usage: SL_BUILD=build sh tools/demo.sh          (make demo)
set -eu
cd "$(dirname "$0")/.."
sluice=${SL_BUILD:-build}/sluice
model=models/tiny-q8_0.gguf
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# ask TITLE QUESTION [OPTION...]: prints question, answer and speed.
ask() {
    title=$1 question=$2
    shift 2
    printf '\n[%s] %s\n\n' "$title" "$question"
    if ! "$sluice" run "$model" --greedy --verbose "$@" -- "$question" \
        >"$scratch/answer" 2>"$scratch/told"; then
        cat "$scratch/told" >&2
        exit 1
    fi
    sed 's/^/    /' "$scratch/answer"
    sed -n -e 's/^prompt  */    . prompt: /p' -e 's/^answer  */    . answer: /p' "$scratch/told"
}

cat <<EOF2
This is $model: 10.9 million parameters, 11 MB, trained to demonstrate this program.
It has the structure of the large models but knows only a few facts. The CPU kernels are
portable C, written to be exact: the speed below is that of a reference, not a limit.
EOF2

ask fact "What is the capital of France?"
ask sum "What is 6 times 7?"
ask code "Write a Python function add(a, b)."
ask thinking "What is 47 + 36?" --think on --show-thinking

cat >"$scratch/tools.json" <<'EOF2'
[{"type": "function", "function": {"name": "get_weather",
  "description": "Get the weather in a city.",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                 "required": ["city"]}}},
 {"type": "function", "function": {"name": "search", "description": "Search the web.",
  "parameters": {"type": "object", "properties": {"query": {"type": "string"}},
                 "required": ["query"]}}}]
EOF2
ask "tool call" "What is the weather in Paris?" --tools "$scratch/tools.json"

printf '\nMemory: %s\n' "$(sed -n 's/^memory  *//p' "$scratch/told")"
cat <<EOF2

With a model of your own, a .gguf file or a Hugging Face folder of Qwen3.5, 3.6 or 3.8:

    $sluice info MODEL
    $sluice run MODEL "Why is the sky blue?"
EOF2
