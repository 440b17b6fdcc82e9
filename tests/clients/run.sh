#!/bin/sh
# Real clients against the real binary: each that is installed plays some sessions, and the host's
# metrics must say that it recognised them and kept each where it was.
#
# usage: tests/clients/run.sh [--install]
#
# --install: aiperf and openai into target/venv-clients (a gigabyte), nghttp and h2load with apt-get.
# Prints one line for each client: passed, FAILED, or skipped and why. Exit status 1 if one failed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/clients
venv=$root/target/venv-clients
pointsman=$root/target/release/pointsman
[ -x "$pointsman" ] || { echo "$pointsman is not there: make build"; exit 1; }

if [ "${1:-}" = --install ]; then
    python3 -m venv "$venv" &&
        "$venv/bin/python" -m pip install --quiet --retries 5 -r "$here/requirements.txt" || exit 1
    command -v nghttp >/dev/null || apt-get install --yes --quiet nghttp2-client || exit 1
fi

work=$(mktemp -d)
pids=""
stop() {
    for pid in $pids; do kill "$pid" 2>/dev/null; done
    for pid in $pids; do wait "$pid" 2>/dev/null; done
    pids=""
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# start NAME ARGS…: the address that it prints first, in $started
start() {
    name=$1
    shift
    : >"$work/$name.out"
    "$pointsman" "$@" >"$work/$name.out" 2>"$work/$name.err" &
    pids="$pids $!"
    # It prints one line as soon as it listens.
    started=$(timeout 30 tail -n +1 -f "$work/$name.out" | grep -m 1 -o 'http://[0-9.:]*' | head -n 1)
    [ -n "$started" ] || { echo "$name does not start:"; cat "$work/$name.err"; exit 1; }
}

# Engines and a host of its own for each client: its counts are its own.
fresh() {
    stop
    start a engine --listen 127.0.0.1:0 --ranks 4 --name a --time-scale 0.01
    a=$started
    start b engine --listen 127.0.0.1:0 --ranks 4 --name b --time-scale 0.01
    cat >"$work/pointsman.toml" <<TOML
[listen]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
[policy]
use = "parent-affinity"
[[pool]]
name = "main"
dialect = "vllm"
endpoints = [
  { name = "a", url = "$a", ranks = 4 },
  { name = "b", url = "$started", ranks = 4 },
]
TOML
    start host serve --config "$work/pointsman.toml"
    url=$started
    admin=$(grep -o 'http://[0-9.:]*' "$work/host.out" | tail -n 1)
}

# metric NAME [LABEL]: the sum of its series
metric() {
    curl -s "$admin/metrics" | awk -v name="$1" -v label="${2:-}" '
        index($1, name "{") == 1 || $1 == name { if (label == "" || index($0, label)) sum += $NF }
        END { printf "%d", sum }'
}

failed=0
# verdict NAME CONDITION: a shell test over the numbers below
verdict() {
    requests=$(metric pointsman_requests_total)
    ok=$(metric pointsman_requests_total 'code="200"')
    new=$(metric pointsman_affinity_total 'event="new"')
    owner=$(metric pointsman_affinity_total 'event="owner"')
    siblings=$(metric pointsman_requests_total 'reason="siblings"')
    unkeyed=$(metric pointsman_requests_without_session_total)
    outstanding=$(metric pointsman_target_requests)
    said="requests $requests, 200: $ok, new $new, owner $owner, siblings $siblings, without session $unkeyed"
    if eval "[ \"$outstanding\" -eq 0 ] && $2"; then
        echo "passed   $1: $said"
    else
        echo "FAILED   $1: $said, outstanding $outstanding; wanted $2"
        tail -n 20 "$work/client.log"
        failed=1
    fi
}
skip() { echo "skipped  $1: $2"; }

body='{"model":"demo","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}'
printf %s "$body" >"$work/body.json"
chat=/v1/chat/completions
four='[ $requests -eq 4 ] && [ $ok -eq 4 ] && [ $new -eq 1 ] && [ $owner -eq 3 ] && [ $unkeyed -eq 0 ]'

# curl, once for each version of HTTP
for version in --http1.1 --http2-prior-knowledge; do
    if ! command -v curl >/dev/null; then
        skip "curl $version" "not installed"
    elif [ $version != --http1.1 ] && ! curl --version | grep -q HTTP2; then
        skip "curl $version" "this curl has no HTTP/2"
    else
        fresh
        for _ in 1 2 3 4; do
            curl -s $version -o /dev/null -H 'x-session-id: s' -H 'content-type: application/json' \
                -d "@$work/body.json" "$url$chat"
        done >"$work/client.log" 2>&1
        verdict "curl $version" "$four"
    fi
done

# nghttp: h2c, four requests at once on one connection
if command -v nghttp >/dev/null; then
    fresh
    nghttp -v -m 4 -d "$work/body.json" -H 'x-session-id: s' -H 'content-type: application/json' \
        "$url$chat" >"$work/client.log" 2>&1
    verdict "nghttp (h2c)" "$four"
else
    skip "nghttp (h2c)" "not installed: apt-get install nghttp2-client, or --install"
fi

if command -v h2load >/dev/null; then
    for protocol in h2c http/1.1; do
        fresh
        h2load -n 2000 -c 8 -m 8 -p $protocol -d "$work/body.json" -H 'x-session-id: s' \
            -H 'content-type: application/json' "$url$chat" >"$work/client.log" 2>&1
        verdict "h2load $protocol" '[ $ok -eq 2000 ] && [ $requests -eq 2000 ] && [ $unkeyed -eq 0 ]'
    done
else
    skip h2load "not installed: apt-get install nghttp2-client, or --install"
fi

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import openai' 2>/dev/null; then
    fresh
    "$venv/bin/python" "$root/tests/python/openai_session.py" "$url" s 4 4 >"$work/client.log" 2>&1
    verdict "openai (Python)" "$four"
else
    skip "openai (Python)" "not installed: --install"
fi

# aiperf NAME CONDITION ARGS…
aiperf() {
    title=$1 wanted=$2
    shift 2
    fresh
    (
        # HF_HUB_OFFLINE makes it refuse a tokenizer in a folder.
        unset HF_HUB_OFFLINE
        cd "$work" && DO_NOT_TRACK=1 HF_HOME=$work/hf \
            AIPERF_HTTP_X_SESSION_ID_FROM_CORRELATION_ID=true \
            AIPERF_HTTP_X_DYNAMO_SESSION_ID_FROM_CORRELATION_ID=true \
            timeout 240 "$venv/bin/aiperf" profile --model demo --url "$url" --endpoint-type chat \
            --streaming --tokenizer "$work/data/tokenizer" --ui none --no-gpu-telemetry --no-server-metrics \
            --workers-max 2 --random-seed 7 --output-artifact-dir "$work/out" "$@"
    ) >"$work/client.log" 2>&1
    verdict "$title" "$wanted"
    rm -rf "$work/out"
}

if [ -x "$venv/bin/aiperf" ]; then
    "$venv/bin/python" "$here/fixtures.py" "$work/data" || exit 1
    # 8 conversations of 4 turns: all turns but the first find their owner.
    aiperf "aiperf, 8 sessions of 4 turns" \
        '[ $ok -eq 32 ] && [ $new -eq 8 ] && [ $owner -eq 24 ] && [ $unkeyed -eq 0 ]' \
        --concurrency 4 --conversation-num 8 --conversation-turn-mean 4 \
        --conversation-turn-stddev 0 --synthetic-input-tokens-mean 100 --output-tokens-mean 8
    # A root of three turns, and two subagents of two: each is a session, the second subagent follows
    # the first.
    aiperf "aiperf, subagents (dag)" \
        '[ $ok -eq 7 ] && [ $new -eq 3 ] && [ $owner -eq 4 ] && [ $siblings -ge 1 ] && [ $unkeyed -eq 0 ]' \
        --input-file "$work/data/dag.jsonl" --custom-dataset-type dag_jsonl --concurrency 1 \
        --conversation-num 1
    # Two roots of three turns, each with two subagents of two requests, which aiperf sends as
    # sessions of their own: all but a root's first follow it.
    aiperf "aiperf, subagents (weka)" \
        '[ $ok -eq 14 ] && [ $((new + owner)) -eq 14 ] && [ $owner -ge 4 ] && [ $siblings -ge 2 ] && [ $unkeyed -eq 0 ]' \
        --input-file "$work/data/weka" --custom-dataset-type weka_trace --concurrency 2 \
        --conversation-num 2
else
    skip aiperf "not installed: --install"
fi
exit $failed
