#!/usr/bin/env bash
# What each node of a job does. Node 0 prepares the data, keeps DVC's records, trains, evaluates and publishes; the others
# train with it. If training is already up to date, they end as well.
#
#     deploy/node.sh RANK RUN       in the project's folder, which all nodes share; RUN is the same word on all of them
#
# SIGTERM ends the other stages at once, and lets training save its state first: it then exits with 75.
set -euo pipefail
rank=$1
run=.parrotflow/launch/$2
mkdir -p .parrotflow/launch
trap 'trap "" TERM; kill -TERM 0' TERM      # as process 1 of a container, this shell alone gets the signal

# DVC dies of SIGTERM and leaves its stage behind, so it ignores it. Training handles it, though it inherits that. Becomes
# the command, so it is only for the background.
ignoring_term() { trap "" TERM; exec "$@"; }

# The exit code of a child, also where a signal interrupts the wait.
await() {
    local code=0
    wait "$1" || code=$?
    while [ "$code" -gt 128 ] && kill -0 "$1" 2>/dev/null; do code=0; wait "$1" || code=$?; done
    return "$code"
}

if [ "$rank" = 0 ]; then
    dvc repro tokenize & await $!
    touch "$run.ready"
    ignoring_term dvc repro train & await $!
    touch "$run.trained"
    dvc repro & await $!
else
    until [ -e "$run.ready" ]; do sleep "${POLL_SECONDS:-5}" & await $!; done
    ignoring_term python -m stages.train &
    training=$!
    while [ -n "$(jobs -rp)" ]; do
        if [ -e "$run.trained" ]; then   # node 0 is done: this one is too, or it waits for nobody
            kill -TERM "$training" 2>/dev/null || true
            for _ in $(seq 60); do [ -z "$(jobs -rp)" ] && exit 0; sleep 1; done
            kill -KILL "$training" 2>/dev/null || true
            exit 0
        fi
        sleep "${POLL_SECONDS:-5}"
    done
    await "$training"
fi
