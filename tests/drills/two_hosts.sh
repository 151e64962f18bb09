#!/bin/bash
# Two machines in network namespaces, joined by a cable of 10.77.0.0/24, each with a torchrun agent of its own, train one
# run; one worker is killed on the way and both agents start anew. Root only:
#     tests/drills/two_hosts.sh PYTHON FOLDER
set -eu
python=$1 folder=$2
export OMP_NUM_THREADS=1 FIRST=10.77.0.1 SECOND=10.77.0.2
cleanup() { ip netns del srnn-first; ip netns del srnn-second; }
ip netns add srnn-first
ip netns add srnn-second
trap cleanup EXIT
ip link add srnn-a netns srnn-first type veth peer name srnn-b netns srnn-second
ip -n srnn-first addr add $FIRST/24 dev srnn-a
ip -n srnn-second addr add $SECOND/24 dev srnn-b
for host in first second; do ip -n srnn-$host link set lo up; done
ip -n srnn-first link set srnn-a up
ip -n srnn-second link set srnn-b up

agent() { # host, device, address, whether it is the rendezvous endpoint
    ip netns exec srnn-$1 env GLOO_SOCKET_IFNAME=$2 "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 1 \
        --max-restarts 2 --rdzv-backend c10d --rdzv-id two-hosts --rdzv-endpoint $FIRST:29511 --rdzv-conf is_host=$4 \
        --local-addr $3 -m selfish_rnn train quickstart model.hidden=32 model.embedding=32 epochs=6 train_tokens=10000 \
        engine=packed -r "$folder/run" > "$folder/$1.log" 2>&1
}
mkdir -p "$folder"
agent first srnn-a $FIRST true & one=$!
agent second srnn-b $SECOND false & two=$!
until [ -f "$folder/run/metrics.jsonl" ] && [ "$(wc -l < "$folder/run/metrics.jsonl")" -ge 2 ]; do sleep 0.2; done
for process in $(ip netns pids srnn-second); do
    if tr '\0' ' ' < /proc/$process/cmdline | grep -q -- "-u -m selfish_rnn"; then kill -9 $process && echo "killed worker $process"; fi
done
wait $one && wait $two
grep -h "is gone" "$folder"/*.log || true
ip netns exec srnn-first grep srnn-a /proc/net/dev
grep -h '"ranks"\|"active_weights"\|"epochs"' "$folder/run/summary.json"
