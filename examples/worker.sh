#!/bin/sh
# A worker in plain curl and jq:   FOREBAY_KEY=fb_… examples/worker.sh QUEUE COMMAND …
# COMMAND gets a job's payload on stdin; exit code 0 means done, what it prints is the result. Else the job is tried
# again by its queue's rules. The lease is renewed while COMMAND runs, and a lost answer is asked for again.
set -u
api=${FOREBAY_API:-http://127.0.0.1:8321}
queue=${1:?usage: worker.sh QUEUE COMMAND …}
shift

call() { # the key goes by stdin: a command line can be read by everybody on the machine
    printf 'header = "Authorization: Bearer %s"\n' "$FOREBAY_KEY" |
        curl -sS --fail -m 90 -K - "$api/$1" -H 'Content-Type: application/json' -d "$2"
}

while :; do
    answer=$(call claim "{\"wants\": [{\"queue\": \"$queue\"}], \"owner\": \"sh-$$\", \"lease\": 30, \"wait\": 20}") ||
        { sleep 2; continue; }
    lease=$(printf '%s' "$answer" | jq -r '.leases[0].lease // empty')
    [ -n "$lease" ] || continue
    (while sleep 10; do call extend "{\"leases\": [\"$lease\"], \"lease\": 30}" >/dev/null; done) &
    beat=$!
    if said=$(printf '%s' "$answer" | jq -c '.leases[0].job.payload' | "$@" 2>&1); then
        end=$(jq -nc --arg lease "$lease" --arg said "$said" '{$lease, outcome: "ack", result: $said}')
    else
        error=$(jq -nc --arg kind "exit $?" --arg said "$said" '{$kind, message: $said[-1000:]}')
        end=$(jq -nc --arg lease "$lease" --argjson error "$error" '{$lease, outcome: "fail", $error}')
    fi
    kill "$beat"
    until call settle "{\"settlements\": [$end]}"; do sleep 2; done
    echo
done
