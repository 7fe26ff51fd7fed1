#!/usr/bin/env bash
# What each node of a job does. Node 0 prepares the data, keeps DVC's records, trains, evaluates and publishes; the others
# train with it. If training is already up to date, they end as well.
#
#     deploy/node.sh RANK RUN       in the project's folder, which all nodes share; RUN is the same word on all of them
#
# SIGTERM, to this script or to all processes of the job, ends the other stages at once and lets training save its state
# first. The exit code is then 75: the same command continues.
set -euo pipefail
rank=$1
run=.parrotflow/launch/$2
mkdir -p .parrotflow/launch

stopped=
trap 'stopped=yes; trap "" TERM; kill -TERM 0' TERM      # as process 1 of a container, this shell alone gets the signal

leave() {
    local code=$?
    [ "$rank" = 0 ] && touch "$run.ended"
    if [ -n "$stopped" ] && [ "$code" != 0 ]; then code=75; fi      # DVC has an exit code of its own for a failed stage
    exit "$code"
}
trap leave EXIT

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
    rm -f "$run.ended"
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
        if [ -e "$run.trained" ]; then   # node 0 is done: this one is too, or it would wait forever
            for _ in $(seq 60); do       # while it starts it ignores the signal
                [ -z "$(jobs -rp)" ] && exit 0
                kill -TERM "$training" 2>/dev/null || true
                sleep 1
            done
            kill -KILL "$training" 2>/dev/null || true
            exit 0
        fi
        sleep "${POLL_SECONDS:-5}"
    done
    code=0
    await "$training" || code=$?
    if [ "$code" = 75 ]; then            # node 0 writes the state of all; a scheduler may kill it once another node ends
        for _ in $(seq 300); do [ -e "$run.ended" ] && break; sleep 1; done
    fi
    exit "$code"
fi
