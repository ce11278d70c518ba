#!/bin/sh
# Correct, in shell: integers for weights, sync(1) on the file and on the directory.
set -eu
cd "$1"

step=0 weight=100000 seed=7
if [ -e state ]; then
    read -r step weight seed <state
fi
while [ "$step" -lt 6 ]; do
    seed=$(((seed * 1103 + 12345) % 65536))
    error=$((weight - seed))
    weight=$((weight - error / 4))
    step=$((step + 1))
    echo "step=$step loss=$((error * error))"
    if [ $((step % 3)) -eq 0 ]; then
        echo "$step $weight $seed" >state.tmp
        sync state.tmp
        mv state.tmp state
        sync .
        echo "saved step=$step"
    fi
done
echo "$weight" >final
